"""The generative papers, each as a composition of parts.

Facts and numbers of the released code are named with it; none of it is here.
"""

from dataclasses import replace
from typing import Literal

from seepage.attacks.base import Attack
from seepage.attacks.generative.enhance import Enhanced
from seepage.attacks.generative.latent import Latent, LowResolution
from seepage.attacks.generative.prior import ImagePrior
from seepage.attacks.generative.search import LatentSearch
from seepage.attacks.search.adaptive import DefenseAware
from seepage.attacks.search.directions import Sign
from seepage.attacks.search.distances import L2
from seepage.attacks.search.labels import LABEL_RULES
from seepage.attacks.search.optimizers import Adam
from seepage.attacks.search.options import SearchOptions, preset
from seepage.base.registry import attacks


@attacks.register(
    "ggl",
    needs="images; auxiliary images or a generator of your own; the batch size, best 1",
    paper="Li et al. 2022",
    cost="minutes to hours (the training of a generator, 25,000 evaluations by CMA-ES)",
    family="generative prior",
    learned_prior=True,
)
@preset("labels", "generator", "weights", "width", "training", latent=128)
def ggl(
    shared: SearchOptions,
    prior: ImagePrior,
    *,
    search: Literal["cma", "adam"] = "cma",
    steps: int | None = None,
    population: int = 50,
    sigma: float = 1.0,
    reach: float | None = 1.0,
) -> Attack:
    """Generative Gradient Leakage (Li et al., CVPR 2022): a generator's inputs, found by ranking guesses.

    Squared L2 distance; CMA-ES from zero, 500 generations of 50 guesses, inputs of the generator squashed by a tanh,
    128 of them (the released code's for faces of 32 pixels). `search="adam"` is its gradient-based variant: signed Adam
    at 0.1 over 2,500 steps with three decays. Where the attacker knows of the client's defense, each guess's gradient
    goes through the defense itself before it is compared, unless that adds noise: then, and with `search="adam"`, it is
    clipped alike and hidden entries are left out (`DefenseAware`). The released code estimates clip and share of
    zeros from the update.

    Deviations: the generator is the decoder of a small variational autoencoder, trained on `Knowledge.auxiliary`, in
    place of a GAN of ImageNet or CelebA size, unless you name your own; added noise is not drawn anew for the guess;
    above 256 latents in all (the paper attacks one image) only variances are adapted; best guess seen, not the last
    mean; the gradient-based variant has no penalty on the latents besides the tanh.

    Args:
        search: `cma`: without derivatives. `adam`: with.
        steps: Generations, or Adam steps; None: 500 and 2,500.
        population: Guesses per generation.
        sigma: Standard deviation of the first generation.
        reach: Bound of the latents; None: none.
    """
    parameters = Latent(prior=prior, reach=reach)
    if search == "cma":
        return LatentSearch(
            distance=DefenseAware(L2()),
            parameters=parameters,
            labels=LABEL_RULES[shared.labels],
            steps=steps or 500,
            population=population,
            sigma=sigma,
        )
    adam = replace(shared, steps=steps or 2500, schedule="step")
    return adam.matching(DefenseAware(L2()), Adam(lr=0.1), parameters, direction=Sign())


@attacks.register(
    "rogs",
    needs="images; auxiliary images, unless enhance is off; the batch size",
    paper="Yue et al. 2023",
    cost="seconds to minutes (100 Adam steps, and the training of two networks)",
    family="generative prior",
)
@preset("labels", "restarts", "microbatch", "width", steps=100, lr=0.05, training=500)
def rogs(
    search: SearchOptions,
    prior: ImagePrior,
    *,
    scale: int = 4,
    enhance: bool = True,
) -> Attack:
    """Reconstruction from obfuscated gradients (Yue et al., USENIX Security 2023): low resolution first, then detail.

    The unknowns are an image a quarter of each side, uniform in [0, 1] at first; its bicubic enlargement goes into the
    network; squared L2 distance, Adam at 0.05 with cosine decay, 100 steps; then a denoiser of the small image and an
    up-sampler. These are the released code's numbers; FedLeak ran it for 10,000 steps. FedLeak counts it among the
    generative attacks.

    Deviations: the released code decays to a tenth of the rate and averages a class-conditional GAN's output with the
    denoised and super-resolved one, all trained on ImageNet; here denoiser and up-sampler are two small residual
    networks trained on `Knowledge.auxiliary`, and no GAN is averaged in (`enhance=False` leaves both out
    and needs no images); labels are inferred, the released code is given them; the distance follows a known defense
    (`DefenseAware`), the released one does not.

    Args:
        scale: How many times smaller each side of the searched image is.
        enhance: Whether the small image is denoised and up-sampled by networks.
    """
    smooth = replace(search, schedule="cosine")
    source = smooth.matching(DefenseAware(L2()), Adam(lr=search.lr), LowResolution(scale=scale))
    if not enhance:
        return source
    return Enhanced(source=source, scale=scale, width=prior.width, training=prior.training)
