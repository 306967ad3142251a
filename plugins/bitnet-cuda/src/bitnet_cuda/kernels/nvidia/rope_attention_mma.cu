// rope_attention on tensor cores (rope_attention_mma.cuh).
#define ROPE_ATTENTION rope_attention
#include "rope_attention_mma.cuh"
