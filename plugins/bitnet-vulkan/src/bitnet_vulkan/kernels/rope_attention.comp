#version 450
#extension GL_GOOGLE_include_directive : require
// rope_store_kv, and attention of the rotated queries.
#define FUSED
#include "attention_split.glsl"
