"""Every number of the paper that this project uses, once, as printed, with the table or text it is from."""

RUNGS = ("52M", "217M", "608M", "1.34B", "2.52B")
# Section 4, the main table (tab:ppl).
PERPLEXITY = {
    "rope": (30.2450, 18.2377, 13.8795, 11.5747, 10.1720),
    "prope": (30.2695, 18.2269, 13.8663, 11.5665, 10.1659),
    "lerope": (29.9479, 18.1335, 13.8093, 11.5384, 10.1387),
}
# Appendix, estimation of multipliers (tab:eg_vs_cm). LeRoPE's, rung by rung.
PIECEWISE_MULTIPLIERS = ("1.071", "1.048", "1.047", "1.032", "1.034")
# The accompanying text: the fit to RoPE's losses, and to three methods' losses with one floor.
FIT = {"E": "0.641", "A": "26.4", "alpha": "0.0574", "rmse": "5.3e-4"}
JOINT_FIT = {"E": "0.643", "rmse": "4.7e-4", "smallest alpha": "0.0573", "largest alpha": "0.0576"}
JOINT_SPREAD_PERCENT = "0.5"
HINGE_RMSE = "1.1e-3"
LARGEST_SPREAD = "0.14"
# Appendix, sensitivity to the floor (tab:eg_sensitivity). Floor: alpha, RMSE, efficiency gains of LeRoPE.
SENSITIVITY = {
    0.0: ("0.044", "6.4e-3", ("1.028", "1.118", "1.090", "1.031", "0.952")),
    0.3: ("0.050", "3.8e-3", ("1.043", "1.089", "1.069", "1.034", "0.982")),
    0.5: ("0.054", "1.8e-3", ("1.055", "1.065", "1.052", "1.036", "1.008")),
    0.641: ("0.057", "5.3e-4", ("1.064", "1.047", "1.039", "1.039", "1.031")),
    0.8: ("0.062", "2.2e-3", ("1.075", "1.024", "1.022", "1.043", "1.063")),
    1.0: ("0.069", "5.5e-3", ("1.090", "0.989", "0.997", "1.051", "1.118")),
}
# Printed once more in tab:eg_vs_cm, at the fitted floor.
FITTED_MULTIPLIERS = SENSITIVITY[0.641][2]
# Appendix, learning rates (tab:lr_optima); the first three were swept.
LEARNING_RATES = {"52M": "1.10e-2", "217M": "2.76e-3", "608M": "9.77e-4", "1.34B": "4.88e-4", "2.52B": "3.45e-4"}
SWEPT = ("52M", "217M", "608M")
# Appendix, the ladder (table:enoki_sizes). Parameters without embeddings, and all.
SIZES = {
    "52M": ("18.87M", "51.64M"),
    "217M": ("150.99M", "216.53M"),
    "608M": ("509.61M", "607.91M"),
    "1.34B": ("1.21B", "1.34B"),
    "2.52B": ("2.36B", "2.52B"),
}
# Appendix, the text and tables on the ladder, by our names for a recipe's fields.
RECIPE = {
    "row_length": "2048",
    "batch_tokens": "131,072",
    "vocab_size": "32,000",
    "betas": "0.9, 0.95",
    "eps": "1e-8",
    "warmup_steps": "1000",
    "schedule": "cosine",
    "precision": "bf16",
    "max_norm": "1.0",
    "weight_decay": "8 (independent, by steps)",
}
# Appendix, extrapolation (tab:extrap_ppl). Perplexity at 2.52B within the train length, beyond it, and over both.
EXTRAPOLATION = {
    ("rope", "YaRN"): ("10.138", "8.861", "10.042"),
    ("prope", "YaRN"): ("10.133", "8.838", "10.035"),
    ("lerope", "dominant band only"): ("10.112", "8.965", "10.026"),
    ("lerope", "YaRN"): ("10.106", "8.776", "10.005"),
}
# The text accompanying fig:leave_one_out_bands. Loss increase of the 2.52B model without a band.
LEAVE_ONE_OUT = {17: 0.762, 26: 0.069}
# Section 6 and the appendix: dominant wavelength / train length.
WAVELENGTH_BY_LENGTH = "2.205"
# Appendix, code (fig:code_frequency_analysis). Dominant wavelength / train length.
CODE_WAVELENGTHS = {2048: 5250.0, 8192: 16627.0}
# Appendix, dominant bands (tab:dom_band_stats).
# Run: training length, dominant band, exp(alpha), frequency, wavelength, frequency * length.
DOMINANT_BANDS = {
    "217M, 2048": (2048, 16, "0.1481", "0.001481", "4243.3", "3.033"),
    "217M, 4096": (4096, 18, "0.1178", "0.000663", "9481.7", "2.714"),
    "217M, 8192": (8192, 19, "0.0823", "0.000347", "18097.8", "2.844"),
    "608M, 2048": (2048, 17, "0.1945", "0.001459", "4307.8", "2.987"),
    "1.34B, 2048": (2048, 17, "0.1955", "0.001466", "4285.6", "3.003"),
    "2.52B, 2048": (2048, 17, "0.2009", "0.001507", "4170.3", "3.086"),
}
# Appendix, seeds (tab:seeds).
# Loss with seeds 42, 43, 44, its mean and standard deviation, and how far the mean is behind LeRoPE's.
SEEDS = {
    "217M": {
        "b = 2048": (("2.9107", "2.9100", "2.9137"), "2.9115", "0.0020", "0.0134"),
        "RoPE": (("2.9035", "2.9050", "2.9053"), "2.9046", "0.0010", "0.0066"),
        "b = 500k": (("2.8996", "2.8997", "2.9031"), "2.9008", "0.0020", "0.0027"),
        "LeRoPE": (("2.8978", "2.8963", "2.9001"), "2.8981", "0.0019", None),
    },
    "608M": {
        "RoPE": (("2.6304", "2.6290", "2.6288"), "2.6294", "0.0009", "0.0040"),
        "LeRoPE": (("2.6253", "2.6250", "2.6257"), "2.6254", "0.0004", None),
    },
}
# The text accompanying that table. Standard deviations of the per-seed differences from LeRoPE.
PAIRED_DEVIATIONS = {
    ("217M", "RoPE"): "0.0019",
    ("217M", "b = 500k"): "0.0008",
    ("608M", "RoPE"): "0.0010",
}
# Section 5, gain captured (tab:ppl_warmstart), and the main table. Perplexities of seed 42, more precise than its
# losses to four digits.
SEED_42_PERPLEXITY = {
    **{
        (rung, name): f"{PERPLEXITY[method][RUNGS.index(rung)]:.4f}"
        for rung in ("217M", "608M")
        for name, method in (("RoPE", "rope"), ("p-RoPE", "prope"), ("LeRoPE", "lerope"))
    },
    ("217M", "Fixed LeRoPE"): "18.1714",
}
# The text accompanying tab:seeds. What it says of 217M.
CLAIMS = {
    "b = 2048 - RoPE": "0.0069",
    "b = 500k - RoPE": "-0.0038",
    "b = 500k, share of the gain": "0.6",
    "gap / LeRoPE's deviation": "3",
    "gap / RoPE's deviation": "7",
    "best RoPE - worst LeRoPE": "0.0034",
    "p = 0.25 / LeRoPE's deviation": "9",
}
# Appendix, ablations (tab:ablations).
LOSS = {"RoPE": "2.9035", "p-RoPE": "2.9029", "Fixed LeRoPE": "2.8999", "LeRoPE": "2.8978"}
# The table (tab:ppl_warmstart) and the text of section 5, in percent of the perplexity gain.
GAIN_CAPTURED = {"p-RoPE": ("10.4",), "Fixed LeRoPE": ("63.6", "63")}
# Appendix, ablations (tab:ablations). Loss and difference from RoPE, 217M.
ABLATIONS = {
    "b = 2048": ("2.9107", "0.0073"),
    "b = 500k": ("2.8996", "-0.0039"),
    "p-RoPE, p = 0.25": ("2.9208", "0.0173"),
    "p-RoPE, p = 0.5": ("2.9029", "-0.0006"),
    "p-RoPE, p = 0.75": ("2.9029", "-0.0006"),
    "LeRoPE": ("2.8978", "-0.0057"),
    "LeRoPE, linear": ("2.8978", "-0.0057"),
    "LeRoPE, direct": ("2.8980", "-0.0055"),
    "LeRoPE, per layer and head": ("2.8996", "-0.0039"),
    "Fixed LeRoPE": ("2.8999", "-0.0036"),
}
# Appendix, code (tab:code). Loss and difference from RoPE.
CODE_ROPE = "1.2501"
CODE = {"p-RoPE": ("1.2495", "-0.0006"), "LeRoPE": ("1.2398", "-0.0104")}

# The paper's method names, in our terms.
METHODS = {
    "RoPE": "rope",
    "b = 2048": "rope,base=2048",
    "b = 500k": "rope,base=500000",
    "p-RoPE": "prope",
    "p-RoPE, p = 0.25": "prope,p=0.25",
    "p-RoPE, p = 0.5": "prope,p=0.5",
    "p-RoPE, p = 0.75": "prope",
    "LeRoPE": "lerope",
    "LeRoPE, linear": "lerope,parametrization=linear",
    "LeRoPE, direct": "lerope,parametrization=direct",
    "LeRoPE, per layer and head": "lerope,sharing=layer_head",
    "Fixed LeRoPE": "frozen",
}
