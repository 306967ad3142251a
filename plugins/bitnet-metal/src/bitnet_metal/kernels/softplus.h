// log(1 + exp(z)) = max(z, 0) + log(1 + e), e = exp(-|z|). For a small e, 1 + e loses digits; with r = e / (2 + e), at
// most 1/3, log(1 + e) = 2 artanh(r) = 2 (r + r^3 / 3 + r^5 / 5 + ...); terms from r^17 on are below half a unit of the
// last place.
inline float softplus(float z) {
    float e = exp(-fabs(z)), r = e / (2.0f + e), squared = r * r, sum = 0.0f;
    for (int n = 15; n > 0; n -= 2) sum = sum * squared + 1.0f / float(n);
    return max(z, 0.0f) + 2.0f * r * sum;
}
