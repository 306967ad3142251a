#version 450
#extension GL_GOOGLE_include_directive : require
// attention with the positions of a row shared.
#include "attention_split.glsl"
