// log(1 + exp(z)) = max(z, 0) + log(1 + e), e = exp(-|z|). For a small e, 1 + e loses digits; with r = e / (2 + e), at
// most 1/3, log(1 + e) = 2 artanh(r) = 2 (r + r^3 / 3 + r^5 / 5 + ...); terms from r^17 on are below half a unit of the
// last place.

fn softplus(z: f32) -> f32 {
    let e = exp(-abs(z));
    let r = e / (2.0 + e);
    let squared = r * r;
    var sum = 0.0;
    for (var n = 15; n > 0; n -= 2) { sum = sum * squared + 1.0 / f32(n); }
    return max(z, 0.0) + 2.0 * r * sum;
}
