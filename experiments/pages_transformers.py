"""Parts of docs/transformers.md, docs/text.md and docs/adapters.md."""

import statistics

from page_parts import Lines, Part, commands, rows_of, table


def batches() -> Lines:
    """Batches of a vision transformer, by their size."""
    rows = rows_of("transformers/batches")
    body = [
        [
            row["name"],
            f"{row['psnr']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
            f"{row['over_30']:.0%}",
            f"{row['certified']}, {row['false_certificates']} false",
            f"{row['mean_color']:.1f}",
            f"{row['cpu_s']:.0f}",
        ]
        for row in rows
    ]
    heads = ("", "PSNR, median (least to most)", "over 30 dB", "certified", "mean color", "cpu_s")
    title = "Five batches of different ImageNet photographs of 224 pixels, random weights, one gradient in float32:"
    return [title, "", *table(heads, body), "", *commands(rows)]


def patches() -> Lines:
    """Vision transformers: by network at 224 pixels, then by what the client does at 32."""
    rows = rows_of("transformers/patches")
    lines: Lines = []
    for data, title in (
        (
            "photographs",
            "Five packaged photographs of 224 pixels, random weights (torchvision's heads drawn with a "
            "deviation of 0.02), one gradient in float32:",
        ),
        ("cifar10.npz", "Five CIFAR-10 images of 32 pixels, `vit` (64 patches, tokens of 96 numbers, 4 layers):"),
    ):
        found = [row for row in rows if row["data"] == data]
        body = []
        for row in found:
            if row["psnr"] is None:
                body.append(
                    [row["name"], "not applicable", "", "", "", "", f"{row['mean_color']:.1f}", f"{row['cpu_s']:.1f}"]
                )
                continue
            body.append(
                [
                    row["name"],
                    f"{row['psnr']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
                    f"{row['expected']:.1f}",
                    f"{row['shown']:.0%}",
                    f"{row['rounded'] * row['applicable']:.0f} of {row['images']}",
                    f"{row['certified'] * row['applicable']:.0f} of {row['images']}, {row['false_certificates']} false",
                    f"{row['mean_color']:.1f}",
                    f"{row['cpu_s']:.1f}",
                ]
            )
        heads = ("", "PSNR, mean (least to most)", "expected", "directions shown", "rounded")
        lines += [title, "", *table((*heads, "certified", "mean color", "cpu_s"), body), ""]
    reasons = {reason for row in rows for reason in row["reasons"]}
    lines += [f"Not applicable: {reason}." for reason in sorted(reasons)]
    return [*lines, *commands(rows)]


def text() -> Lines:
    """Batches of text, by network and by what the client does."""
    rows = rows_of("transformers/text")
    body = []
    for row in rows:
        reason = " (not applicable)" if row["reasons"] else ""
        rouge = "" if row.get("rouge_1") is None else f"{row['rouge_1']:.2f} / {row['rouge_2']:.2f}"
        body.append(
            [
                row["name"] + reason,
                f"{row['texts']} x {row['length']}",
                f"{row['exact']:.0%} ({row['low']:.0%} to {row['high']:.0%})",
                rouge,
                f"{row['frequent_rouge_1']:.2f}",
                f"{row['certified']} of {row['texts'] * row['runs']}, {row['false']} false",
                f"{row['runs']}",
                f"{row['cpu_s']:.0f}",
            ]
        )
    heads = ("", "texts x tokens", "exact", "ROUGE-1 / 2", "frequent tokens", "certified", "seeds", "cpu_s")
    reasons = {reason for row in rows for reason in row["reasons"]}
    found = table(heads, body)
    found += ["", *(f"Not applicable: {reason}." for reason in sorted(reasons))] if reasons else []
    title = (
        "Paragraphs of Python's language reference, random weights, one gradient in float32. GPT-2 and BERT in their "
        "published sizes (12 blocks of width 768); the others `gpt` of width 256 with 4 blocks, so at most 254 tokens:"
    )
    return [title, "", *found, *commands(rows)]


def token_sets() -> Lines:
    """Sets of tokens of clients that train, by optimizer and steps."""
    rows = rows_of("transformers/token-sets")
    body = [
        [
            row["name"] + (" (not applicable)" if row["reasons"] else ""),
            f"{row['right']:,} of {row['held']:,} ({row['low']:.1%} to {row['high']:.1%})",
            f"{row['named'] - row['right']:,}",
            f"{row['certified']:,}, {row['false']} false",
            f"{row['frequent']:.0%}",
            f"{row['runs']}",
            f"{row['cpu_s']:.1f}",
        ]
        for row in rows
    ]
    heads = ("", "tokens named", "wrong", "certified", "frequent tokens", "batches", "cpu_s")
    title = (
        "Clients that train as Flower's Hugging Face quickstart does: a BERT of two blocks of width 128 (random "
        "weights, 30,522 tokens, dropout on), 32 texts of up to 60 tokens, all of them in each local step. AdamW at "
        "5e-5 with decay 0.01; SGD at 0.01, with momentum 0.9 and decay 5e-4 where it says so. Texts are Python's "
        "language reference in 4,096 of the tokens; `frequent tokens` is how many of the texts' are among as many of "
        "the most frequent public ones:"
    )
    reasons = {reason for row in rows for reason in row["reasons"]}
    said = ["", *(f"Not applicable: {reason}." for reason in sorted(reasons))] if reasons else []
    return [title, "", *table(heads, body), *said, *commands(rows)]


def adapters() -> Lines:
    """Low-rank adapters: images behind vectors, behind tokens, and text, by rank and batch."""
    rows = rows_of("transformers/adapters")
    lines: Lines = []
    for metric, title in (
        ("psnr", "Images of CIFAR-10, attack `lora`; PSNR in dB, a batch for each seed:"),
        ("exact", "Texts of 16 tokens, attack `token_sequences`; share of texts that are exactly right:"),
    ):
        body = []
        for name in dict.fromkeys(
            row["name"] for row in rows if metric in row and row["name"].startswith("text") == (metric == "exact")
        ):
            same = [row for row in rows if row["name"] == name]
            found = [row[metric] for row in same if row[metric] is not None]
            certified = sum(row.get("certified", 0) * row["size"] for row in same)
            false = sum(row.get("false_certificates", 0) for row in same)
            value = "not applicable"
            if found:
                spread = f" ({min(found):.1f} to {max(found):.1f})" if len(found) > 1 and metric == "psnr" else ""
                value = f"{statistics.mean(found):.1f}{spread}" if metric == "psnr" else f"{statistics.mean(found):.0%}"
            total = sum(row["size"] for row in same)
            body.append(
                [
                    name,
                    value,
                    f"{certified:.0f} of {total}, {false} false",
                    f"{len(same)}",
                    f"{statistics.mean(row['cpu_s'] for row in same):.1f}",
                ]
            )
        heads = ("", "PSNR" if metric == "psnr" else "exact", "certified", "seeds", "cpu_s")
        lines += [title, "", *table(heads, body), ""]
    return [*lines, *commands(rows)]


PARTS: dict[str, Part] = {
    "patches": Part("transformers.md", patches),
    "batches": Part("transformers.md", batches),
    "adapters": Part("adapters.md", adapters),
    "text": Part("text.md", text),
    "token-sets": Part("text.md", token_sets),
}
