#version 450
#extension GL_GOOGLE_include_directive : require
// rope_store_kv, then attention of the rotated queries (attention_split.glsl).
#define FUSED
#include "attention_split.glsl"
