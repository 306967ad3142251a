// rope_attention_mixed on tensor cores (rope_attention_mma.cuh).
#define ROPE_ATTENTION rope_attention_mixed
#include "rope_attention_mma.cuh"
