#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// m = act(gate) * up (glu.glsl) of gate_up = [gate | up]; then H(signs * m) for each WIDTH columns, quantized
// (rotate_quantize.glsl). gate_up f32[rows, 2 * width]; signs f32[width]; q i8[rows, width]; scale f32, qsum i32 [rows,
// width / 32]. One workgroup per WIDTH columns of a row.
layout(std430, binding = 0) readonly buffer GateUp { vec4 gate_up4[]; };
layout(std430, binding = 1) readonly buffer Signs { vec4 signs4[]; };
layout(std430, binding = 2) writeonly buffer Q { uint q[]; };
layout(std430, binding = 3) writeonly buffer Scale { float scale[]; };
layout(std430, binding = 4) writeonly buffer Qsum { int qsum[]; };
layout(push_constant) uniform Params { uint rows, width, block; } p;

#include "glu_rotate.glsl"

void main() { glu_rotate(); }
