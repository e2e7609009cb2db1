"""CycloneDX 1.7: an ML-BOM whose model cards carry the measured privacy, and the attestation that claims it."""

import uuid
from collections.abc import Mapping
from typing import Any

from seepage.report.evidence.statement import CaseEvidence, CaseShare, Evidence

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "seepage")
"""Of the serial numbers, which are the same for the same run."""


def cyclonedx(evidence: Evidence, weights: Mapping[str, str]) -> dict[str, Any]:
    """The bill of materials.

    Args:
        evidence: The run's evidence.
        weights: Title of a case to the SHA-256 of its model file.
    """
    stamp = {} if evidence.started is None else {"timestamp": evidence.started}
    claims: list[dict[str, Any]] = [
        {"bom-ref": f"claim-{i}", "target": f"model-{i}", "predicate": _predicate(case), "evidence": ["evidence"]}
        for i, case in enumerate(evidence.judged)
    ]
    assessor = {"bom-ref": "assessor", "organization": {"name": evidence.auditor}}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, evidence.model_dump_json())}",
        "version": 1,
        "metadata": {
            **stamp,
            "tools": {
                "components": [
                    {"type": "application", "name": "seepage", "version": evidence.tool.removeprefix("seepage ")}
                ]
            },
            "component": {"type": "application", "bom-ref": "subject", "name": evidence.subject},
        },
        "components": [_model(evidence, case, i, weights.get(case.title)) for i, case in enumerate(evidence.judged)],
        "declarations": {
            "assessors": [assessor],
            "attestations": [
                {
                    "summary": "What one update of a client reveals to the server that receives it",
                    "assessor": "assessor",
                    "map": [{"requirement": "requirement", "claims": [claim["bom-ref"] for claim in claims]}],
                }
            ],
            "claims": claims,
            "evidence": [
                {
                    "bom-ref": "evidence",
                    "description": "The run of attacks behind the claims",
                    "data": [
                        {
                            "name": "evidence.json",
                            "contents": {"attachment": {"contentType": "text/plain", "content": evidence.verdict}},
                        }
                    ],
                }
            ],
        },
        "definitions": {
            "standards": [
                {
                    "bom-ref": "standard",
                    "name": "CoSAI Risk Map",
                    "requirements": [
                        {
                            "bom-ref": "requirement",
                            "identifier": "riskFederatedDistributedTrainingPrivacy",
                            "title": "Federated/Distributed Training Privacy",
                        }
                    ],
                }
            ]
        },
    }


def _predicate(case: CaseEvidence) -> str:
    if case.recovered is None:
        why = case.unscored or "no share is known"
        return f"{why.capitalize()}, so nothing is claimed of how much can be reconstructed."
    if case.inconclusive is not None:
        return f"Inconclusive, so nothing is claimed of how much can be reconstructed: {case.inconclusive}."
    return f"Private examples recovered: {case.recovered.words}; no claim on attacks that were not run."


def _model(evidence: Evidence, case: CaseEvidence, number: int, digest: str | None) -> dict[str, Any]:
    slice_ = {} if case.data is None else {"slice": case.data}
    doubtful = case.inconclusive is not None
    metrics = [
        _metric("share of private examples recovered from one update", case.recovered, slice_, doubtful=doubtful)
    ]
    metrics.append(
        _metric(
            "share of private examples reconstructed exactly from one update", case.exact, slice_, doubtful=doubtful
        )
    )
    defense = f"The client applies {case.defense}." if case.defense else "The client applies no defense."
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model-{number}",
        "name": case.model or "captured model",
        "description": case.title,
        **({} if digest is None else {"hashes": [{"alg": "SHA-256", "content": digest}]}),
        "modelCard": {
            "quantitativeAnalysis": {"performanceMetrics": [metric for metric in metrics if metric is not None]},
            "considerations": {
                "technicalLimitations": [
                    "An audit says what these attacks found with the steps they were given; it is no proof of safety.",
                    *(f"Not tried: {item}" for item in evidence.not_tried),
                ],
                "ethicalConsiderations": [
                    {
                        "name": "Private examples can be read out of updates by an honest-but-curious server",
                        "mitigationStrategy": defense,
                    }
                ],
            },
        },
    }


def _metric(kind: str, share: CaseShare | None, slice_: Mapping[str, str], *, doubtful: bool) -> dict[str, Any] | None:
    if share is None or doubtful:
        return None
    return {
        "type": kind,
        "value": f"{share.hits / share.of:.4f}",
        **slice_,
        "confidenceInterval": {"lowerBound": f"{share.low:.4f}", "upperBound": f"{share.high:.4f}"},
    }
