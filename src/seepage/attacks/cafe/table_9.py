"""The constants that the CAFE paper gives for its data sets (supplement, table 9)."""

Constants = dict[str, float]
TABLE_9: dict[str, Constants] = {
    "cifar10": {"lr_one": 5e-3, "lr_two": 8e-3, "lr_three": 2e-2, "xi": 90.0},
    "mnist": {"lr_one": 1e-2, "lr_two": 1e-2, "lr_three": 1e-2, "xi": 25.0},
    "linnaeus5": {"lr_one": 5e-3, "lr_two": 5e-3, "lr_three": 1e-2, "xi": 110.0},
    "yale32": {"lr_one": 1e-2, "lr_two": 1e-2, "lr_three": 1e-2, "xi": 32.0},
}
"""The paper's constants by data set (supplement, table 9); alpha, beta, gamma are 1e-2, 1e-4, 1e-3 for all."""
TABLE_9_BATCH = 40
"""K of table 9."""
TABLE_9_TILE = {"cifar10": 16 * 16 * 3, "mnist": 14 * 14, "linnaeus5": 16 * 16 * 3, "yale32": 16 * 16}
"""Values of one of the four tiles for which table 9 has its xi. The paper does not say how large its images of
Linnaeus 5 are; 32 pixels are assumed."""
