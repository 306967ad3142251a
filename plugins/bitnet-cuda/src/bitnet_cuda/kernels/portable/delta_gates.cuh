// Gates of one head of a delta net, with gates[t] = [a | b].
struct Gates {
    const float *gates, *rate, *dt;
    u32 n_heads, head;

    // Returns the logarithm of the decay, rate * softplus(a + dt).
    __device__ float log_decay(u32 t) const {
        float z = gates[(size_t)t * 2 * n_heads + head] + dt[head];
        return rate[head] * (fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))));
    }
    __device__ float beta(u32 t) const {
        return quotient(1.0f, 1.0f + expf(-gates[((size_t)t * 2 + 1) * n_heads + head]));
    }
};
