#version 450
#extension GL_GOOGLE_include_directive : require
// attention for few rows (attention_split.glsl): workgroups share the positions of a row.
#include "attention_split.glsl"
