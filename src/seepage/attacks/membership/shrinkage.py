"""How far a second moment of few examples is drawn towards a multiple of I (Ledoit and Wolf 2004)."""


def ledoit_wolf(m: int, d: int, mu: float, squared: float, fourth: float) -> float:
    """Rho of `(1 - rho) S0 + rho mu I`, strictly between 0 and 1, where S0 = Z'Z / m.

    Of m examples of d entries, with mu = tr S0 / d, `squared` = |S0|^2 and `fourth` = mean_i |z_i|^4 (Section 3.2):

        delta^2 = |S0|^2 - d mu^2,   beta^2 = (mean_i |z_i|^4 - |S0|^2) / m,   rho = min(beta^2, delta^2) / delta^2

    >>> ledoit_wolf(100, 2, 1.0, 2.5, 12.5)
    0.2
    """
    delta = max(squared - d * mu**2, 1e-30)
    beta = (fourth - squared) / m
    return min(max(beta / delta, 1e-6), 1 - 1e-6)
