// SPDX-License-Identifier: Apache-2.0
// The figures of the model-like presets. Sources: published statistics of captured tensors (SageAttention 1 to 3,
// SpargeAttn, "massive values" and attention-sink studies); what no source fixes was chosen so that the statistics and
// the effects of smoothing come out as published (tests/synthetic).
#pragma once

namespace clary::synthetic {

struct Preset {
    const char* name;
    const char* imitates;
    double spread = 0.3;   // channel scales are exp(spread * n), n ~ N(0, 1)
    double k_bias = 0;     // mean of the channels' |bias| in units of their scale, lognormal with sigma 0.8
    double q_bias = 0;     // the same for Q
    double q_drift = 0;    // how much Q's bias changes from one block of 128 tokens to the next, in units of q_bias
    double loud_bias = 0;  // bias of K's and Q's loud channels, in units of their amplified scale
    int loud = 0;          // loud channels, in pairs c, c + dim / 2
    double k_gain = 1, q_gain = 1;  // amplification of the loud channels
    bool rope = false;              // rotary embedding (base 10000) after everything; loud pairs are then the slow ones
    double rho = 0;                 // AR(1) correlation of neighbouring tokens in Q and K
    double v_rho = 0;               // and in V
    double topic = 0;               // strength of the cluster centres that Q and K share
    double ess = 0;   // wanted median effective number of keys: below 1 a share of the keys; 0: leave Q as it is
    double sink = 0;  // logit added to the first four keys, whose V is damped
    double v_bias = 0, v_bias_share = 0;  // bias of that share of V's channels, in units of their scale
};

inline constexpr Preset kPresets[] = {
    {.name = "llm",
     .imitates = "decoder with rotary embedding and an attention sink (Llama, Qwen)",
     .k_bias = 0.3,
     .q_bias = 0.3,
     .loud_bias = 8,
     .loud = 4,
     .k_gain = 6,
     .q_gain = 6,
     .rope = true,
     .rho = 0.3,
     .topic = 0.5,
     .ess = 200,
     .sink = 8},
    {.name = "dit_mild",
     .imitates = "middle blocks of video and image transformers (Wan, Flux)",
     .k_bias = 0.7,
     .q_bias = 0.7,
     .q_drift = 0.3,
     .loud_bias = 6,
     .loud = 4,
     .k_gain = 2,
     .q_gain = 1.5,
     .rho = 0.85,
     .v_rho = 0.5,
     .topic = 0.3,
     .ess = 0.2,
     .v_bias = 0.5,
     .v_bias_share = 1},
    {.name = "dit_bias",
     .imitates = "strong channel biases of Q, K and V (CogVideoX, Unidiffuser)",
     .k_bias = 3,
     .q_bias = 3,
     .q_drift = 0.2,
     .loud_bias = 40,
     .loud = 6,
     .k_gain = 4,
     .q_gain = 4,
     .rho = 0.9,
     .v_rho = 0.5,
     .topic = 0.5,
     .ess = 0.02,
     .v_bias = 8.5,
     .v_bias_share = 0.04},
    {.name = "loud",
     .imitates = "last blocks with a few loud channels and no bias there",
     .k_bias = 0.7,
     .q_bias = 0.3,
     .loud = 4,
     .k_gain = 16,
     .q_gain = 8,
     .rho = 0.85,
     .v_rho = 0.5,
     .topic = 0.3,
     .ess = 200},
    {.name = "sharp",
     .imitates = "retrieval heads",
     .k_bias = 0.7,
     .q_bias = 0.3,
     .loud_bias = 6,
     .loud = 4,
     .k_gain = 2,
     .q_gain = 2,
     .rho = 0.5,
     .topic = 1,
     .ess = 6},
    {.name = "long",
     .imitates = "dit_mild for 128K keys and more, V with a bias of 1",
     .k_bias = 0.7,
     .q_bias = 0.7,
     .q_drift = 0.3,
     .loud_bias = 6,
     .loud = 4,
     .k_gain = 2,
     .q_gain = 1.5,
     .rho = 0.85,
     .v_rho = 0.5,
     .topic = 0.3,
     .ess = 0.2,
     .v_bias = 1,
     .v_bias_share = 1},
};

}  // namespace clary::synthetic
