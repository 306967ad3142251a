// Returns acc + the sum over the four bytes of codes (0..3) * signed q. DOT: the device's packed integer dot product.
#ifdef DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int packed_dot(int a, int b, spirv_literal int format);
int dot4(uint codes, uint q, int acc) { return acc + packed_dot(int(codes), int(q), 0); }
// The same for bytes up to 255.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4452)
int mixed_dot(int a, uint b, spirv_literal int format);
int wide_dot4(uint codes, uint q, int acc) { return acc + mixed_dot(int(q), codes, 0); }
#else
int dot4(uint codes, uint q, int acc) {
    for (uint i = 0; i < 4; i++) acc += int((codes >> (8 * i)) & 255u) * signed_byte(q, i);
    return acc;
}
int wide_dot4(uint codes, uint q, int acc) { return dot4(codes, q, acc); }
#endif
int dot16(uvec4 codes, uvec4 q, int acc) {
    return dot4(codes.x, q.x, dot4(codes.y, q.y, dot4(codes.z, q.z, dot4(codes.w, q.w, acc))));
}
int wide_dot16(uvec4 codes, uvec4 q, int acc) {
    return wide_dot4(codes.x, q.x, wide_dot4(codes.y, q.y, wide_dot4(codes.z, q.z, wide_dot4(codes.w, q.w, acc))));
}
