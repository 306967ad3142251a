// Attention within decoder_layer_resident.comp: rotation, the cache's newest row, and shares of a sequence's positions.
// The last workgroup of a row and key/value head combines the results. An invocation has all HEADS queries of a key/value head.

// Invocations that share a position, octets of each, positions at a time; elements of new heads per invocation;
// workgroups that share a row and key/value head.
const uint SHARERS = DIM / 8 < WAVE ? DIM / 8 : WAVE, OCTETS = DIM / 8 / SHARERS, PLACES = GROUP / SHARERS;
const uint SPAN = PLACES * BATCH, FRESH = ((HEADS + 2) * DIM + GROUP - 1) / GROUP;
const uint MOST_SPLITS = MEMBERS < ROOM * KV_HEADS ? 1 : MEMBERS / (ROOM * KV_HEADS);
const uint AT_ONCE = MOST_SPLITS < 8 ? MOST_SPLITS : 8;  // parts of other workgroups
const float LOWEST = -3.0e38;
shared vec4 fresh[(HEADS + 2) * DIM / 4];
// Sums of squares of WAVE elements of the new heads; parts of the subgroups use q_shared, which is free meanwhile.
shared float fresh_squares[QKNORM == 0 ? 1 : (HEADS + 2) * DIM / WAVE];
shared float tops[WAVES * HEADS], totals[WAVES * HEADS], weights[WAVES * HEADS], best[HEADS];
shared uint last_one;

// Scores, and the weighted sum of values, of a share of a row's positions for a key/value head. used: false if the row
// has no slot or fewer shares. seen_again: whether the sequence's table maps the newest position to its slot.
struct Share {
    uint kv_head, row, first, end, split, splits;
    bool used, seen_again;
    ivec4 step;
};

Share share_of(uint unit) {
    Share s;
    uint pairs = p.rows * KV_HEADS, pair = unit % pairs;
    s.kv_head = pair % KV_HEADS;
    s.row = pair / KV_HEADS;
    s.split = unit / pairs;
    s.step = step_of(s.row);
    uint count = uint(s.step.y + 1), position = uint(max(s.step.y, 0));
    s.splits = max(min((count + SPAN - 1) / SPAN, MOST_SPLITS), 1u);
    uint each = (count + s.splits - 1) / s.splits;
    s.first = min(s.split * each, count);
    s.end = min(s.split * each + each, count);
    s.used = count > 0 && s.split < s.splits;
    int block = tables[uint(max(s.step.w, 0)) * p.max_blocks + position / KV_BLOCK];
    s.seen_again = s.step.z == block * int(KV_BLOCK) + int(position % KV_BLOCK);
    return s;
}

void fetch(Share s, uint start, out Octet keys[BATCH][OCTETS], out Octet values[BATCH][OCTETS]) {
    [[unroll]] for (uint b = 0; b < BATCH; b++) {
        uint position = start + b * PLACES + LID / SHARERS;
        uint block = position < s.end ? uint(tables[uint(s.step.w) * p.max_blocks + position / KV_BLOCK]) : 0;
        uint word0 = ((block * KV_HEADS + s.kv_head) * KV_BLOCK + position % KV_BLOCK) * (p.row_bytes / 4);
        [[unroll]] for (uint o = 0; o < OCTETS; o++) {
            keys[b][o] = values[b][o] = Octet(uvec4(0), uvec4(0));
            if (position >= s.end) continue;
            keys[b][o] = load_k(word0, LID % SHARERS + o * SHARERS);
            values[b][o] = load_v(word0, LID % SHARERS + o * SHARERS);
        }
    }
}

void newest_of(uint at, out Octet made[OCTETS]) {
    float v[OCTETS][8], largest = 0.0;
    [[unroll]] for (uint o = 0; o < OCTETS; o++)
        [[unroll]] for (uint i = 0; i < 8; i++) {
            v[o][i] = fresh[at / 4 + 2 * (LID % SHARERS + o * SHARERS) + i / 4][i % 4];
            largest = max(largest, abs(v[o][i]));
        }
    if (KV == 2)
        [[unroll]] for (uint d = SHARERS / 2; d > 0; d >>= 1) largest = max(largest, subgroupShuffleXor(largest, d));
    float factor = largest > 0.0 ? 127.0 / largest : 0.0;
    [[unroll]] for (uint o = 0; o < OCTETS; o++) made[o] = encode(v[o], factor, largest / 127.0);
}

// Returns element d of a head of a key/value head (its queries, key and value, in that order) in qkv.
uint element(Share s, uint which, uint d) {
    return s.row * QKV + (which < HEADS ? s.kv_head * HEADS + which : which * KV_HEADS + s.kv_head) * DIM + d;
}
// Returns the element that forms a pair with d.
uint other_of(uint d) { return INTERLEAVED == 1 ? d ^ 1u : d < DIM / 2 ? d + DIM / 2 : d - DIM / 2; }

// Angles for the elements of an invocation at the newest position, with the gammas of both elements of each pair.
void turn_of(Share s, out vec2 turn[FRESH], out vec2 gain[FRESH]) {
    uint position = uint(s.step.y);
    [[unroll]] for (uint i = 0; i < FRESH; i++) {
        uint e = LID + i * GROUP, d = e % DIM;
        turn[i] = rope[position * (DIM / 2) + (INTERLEAVED == 1 ? d / 2 : d % (DIM / 2))];
        if (QKNORM == 1)
            gain[i] = e / DIM < HEADS ? vec2(q_gamma[d], q_gamma[other_of(d)]) : vec2(k_gamma[d], k_gamma[other_of(d)]);
    }
}

// Computes rotated queries, and the newest key and value, of a key/value head.
void stage(Share s, vec2 turn[FRESH], vec2 gain[FRESH]) {
    vec2 pair[FRESH];
    [[unroll]] for (uint i = 0; i < FRESH; i++) {
        uint e = LID + i * GROUP, which = e / DIM, d = e % DIM;
        pair[i] = which < HEADS + 2 ? vec2(qkv[element(s, which, d)], qkv[element(s, which, other_of(d))]) : vec2(0.0);
    }
    if (QKNORM == 1) {
        [[unroll]] for (uint i = 0; i < FRESH; i++) {
            float squares = sum_of_wave(pair[i].x * pair[i].x);
            if (LID % WAVE == 0 && LID + i * GROUP < (HEADS + 2) * DIM) fresh_squares[(LID + i * GROUP) / WAVE] = squares;
        }
        work_barrier();
    }
    [[unroll]] for (uint i = 0; i < FRESH; i++) {
        uint e = LID + i * GROUP, which = e / DIM, d = e % DIM;
        if (which >= HEADS + 2) break;
        if (QKNORM == 1 && which <= HEADS) {
            float squares = 0.0;
            [[unroll]] for (uint w = 0; w < DIM / WAVE; w++) squares += fresh_squares[which * (DIM / WAVE) + w];
            pair[i] *= gain[i] * (not_finite(squares) ? uintBitsToFloat(NAN_BITS) : 1.0 / sqrt(squares / float(DIM) + p.eps));
        }
        bool first = other_of(d) > d;
        if (which <= HEADS) pair[i].x = pair[i].x * turn[i].x + pair[i].y * (first ? -turn[i].y : turn[i].y);
        fresh[e / 4][e % 4] = which < HEADS ? pair[i].x * p.scale : pair[i].x;
    }
}

void attend(Share s, Octet keys[BATCH][OCTETS], Octet values[BATCH][OCTETS]) {
    work_barrier();
    uint last = uint(s.step.y), place = LID / SHARERS, lane = LID % SHARERS;
    Octet newest_k[OCTETS], newest_v[OCTETS];
    bool renewed = false;
    if (s.end == last + 1) {
        newest_of(HEADS * DIM, newest_k);
        newest_of((HEADS + 1) * DIM, newest_v);
        renewed = s.seen_again;
        if (place == 0) {
            uint row = (uint(s.step.z) / KV_BLOCK * KV_HEADS + s.kv_head) * KV_BLOCK + uint(s.step.z) % KV_BLOCK;
            uint word0 = row * (p.row_bytes / 4);
            [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                store_k(word0, lane + o * SHARERS, newest_k[o]);
                store_v(word0, lane + o * SHARERS, newest_v[o]);
            }
        }
    }
    float query[HEADS][OCTETS][8], acc[HEADS][OCTETS][8], largest[HEADS], total[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        largest[h] = LOWEST;
        total[h] = 0.0;
        [[unroll]] for (uint o = 0; o < OCTETS; o++)
            [[unroll]] for (uint i = 0; i < 8; i++) {
                query[h][o][i] = fresh[h * DIM / 4 + 2 * (lane + o * SHARERS) + i / 4][i % 4];
                acc[h][o][i] = 0.0;
            }
    }
    for (uint start = s.first; start < s.end; start += SPAN) {
        if (start > s.first) fetch(s, start, keys, values);
        if (renewed && last - start < SPAN) {
            [[unroll]] for (uint b = 0; b < BATCH; b++)
                [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                    if (start + b * PLACES + place != last) continue;
                    keys[b][o] = newest_k[o];
                    values[b][o] = newest_v[o];
                }
        }
        float score[BATCH][HEADS];
        [[unroll]] for (uint b = 0; b < BATCH; b++) {
            [[unroll]] for (uint h = 0; h < HEADS; h++) score[b][h] = 0.0;
            [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                Octets k = decode(keys[b][o]);
                [[unroll]] for (uint h = 0; h < HEADS; h++)
                    [[unroll]] for (uint i = 0; i < 8; i++) score[b][h] += query[h][o][i] * k.v[i];
            }
        }
        [[unroll]] for (uint d = SHARERS / 2; d > 0; d >>= 1)
            [[unroll]] for (uint b = 0; b < BATCH; b++)
                [[unroll]] for (uint h = 0; h < HEADS; h++) score[b][h] += subgroupShuffleXor(score[b][h], d);
        [[unroll]] for (uint h = 0; h < HEADS; h++) {
            float now = largest[h];
            [[unroll]] for (uint b = 0; b < BATCH; b++)
                if (start + b * PLACES + place < s.end) now = max(now, score[b][h]);
            if (start > s.first) {
                float rescale = exp(largest[h] - now);
                total[h] *= rescale;
                [[unroll]] for (uint o = 0; o < OCTETS; o++)
                    [[unroll]] for (uint i = 0; i < 8; i++) acc[h][o][i] *= rescale;
            }
            largest[h] = now;
            [[unroll]] for (uint b = 0; b < BATCH; b++) {
                score[b][h] = start + b * PLACES + place < s.end ? exp(score[b][h] - now) : 0.0;
                total[h] += score[b][h];
            }
        }
        [[unroll]] for (uint b = 0; b < BATCH; b++)
            [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                Octets v = decode(values[b][o]);
                [[unroll]] for (uint h = 0; h < HEADS; h++)
                    [[unroll]] for (uint i = 0; i < 8; i++) acc[h][o][i] += score[b][h] * v.v[i];
            }
    }
    // Combine the subgroup, the workgroup, and in the last one the workgroups of this key/value head.
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        float now = largest[h];
        [[unroll]] for (uint d = SHARERS; d < WAVE; d <<= 1) now = max(now, subgroupShuffleXor(now, d));
        float weight = exp(largest[h] - now);
        total[h] *= weight;
        [[unroll]] for (uint d = SHARERS; d < WAVE; d <<= 1) total[h] += subgroupShuffleXor(total[h], d);
        [[unroll]] for (uint o = 0; o < OCTETS; o++)
            [[unroll]] for (uint j = 0; j < 2; j++) {
                vec4 four;
                [[unroll]] for (uint i = 0; i < 4; i++) four[i] = acc[h][o][4 * j + i] * weight;
                [[unroll]] for (uint d = SHARERS; d < WAVE; d <<= 1) four += subgroupShuffleXor(four, d);
                if (gl_SubgroupInvocationID < SHARERS)
                    q_shared[(gl_SubgroupID * HEADS + h) * DIM / 4 + 2 * (lane + o * SHARERS) + j] = floatBitsToUint(four);
            }
        if (subgroupElect()) {
            tops[gl_SubgroupID * HEADS + h] = now;
            totals[gl_SubgroupID * HEADS + h] = total[h];
        }
    }
    work_barrier();
    for (uint e = LID; e < WAVES * HEADS; e += GROUP) {  // the weights, once for all elements
        float now = LOWEST;
        [[unroll]] for (uint w = 0; w < WAVES; w++) now = max(now, tops[w * HEADS + e % HEADS]);
        weights[e] = exp(tops[e] - now);
        totals[e] *= weights[e];
        if (e < HEADS) best[e] = now;
    }
    work_barrier();
    const uint AREA = HEADS * DIM + 2 * HEADS;
    uint pair = s.row * KV_HEADS + s.kv_head, part0 = LOST + LINE + ROOM * KV_HEADS + pair * MOST_SPLITS * AREA;
    for (uint e = LID; e < HEADS * DIM; e += GROUP) {
        uint h = e / DIM;
        float sum = 0.0, all = 0.0;
        [[unroll]] for (uint w = 0; w < WAVES; w++) {
            all += totals[w * HEADS + h];
            sum += weights[w * HEADS + h] * uintBitsToFloat(q_shared[(w * HEADS * DIM + e) / 4][e % 4]);
        }
        if (s.splits == 1) {
            heads[pair * HEADS * DIM + e] = sum / all;
            continue;
        }
        partial[part0 + s.split * AREA + e] = sum;
        if (e % DIM == 0) {
            partial[part0 + s.split * AREA + HEADS * DIM + 2 * h] = best[h];
            partial[part0 + s.split * AREA + HEADS * DIM + 2 * h + 1] = all;
        }
    }
    if (s.splits == 1) return;
    work_barrier();
    uint done = LOST + LINE + pair;
    if (LID == 0) {
        memoryBarrierBuffer();
        last_one = atomicAdd(meetings[done], 1);
        if (last_one == s.splits - 1) meetings[done] = 0;
    }
    work_barrier();
    if (last_one != s.splits - 1) return;
    for (uint e = LID; e < HEADS * DIM; e += GROUP) {
        uint h = e / DIM;
        float now = LOWEST, sum = 0.0, all = 0.0;
        for (uint i0 = 0; i0 < s.splits; i0 += AT_ONCE) {
            float value[AT_ONCE], top[AT_ONCE], count[AT_ONCE], next = now;
            [[unroll]] for (uint i = 0; i < AT_ONCE; i++) {
                uint at = part0 + min(i0 + i, s.splits - 1) * AREA;
                value[i] = partial[at + e];
                top[i] = i0 + i < s.splits ? partial[at + HEADS * DIM + 2 * h] : LOWEST;
                count[i] = partial[at + HEADS * DIM + 2 * h + 1];
            }
            [[unroll]] for (uint i = 0; i < AT_ONCE; i++) next = max(next, top[i]);
            float rescale = exp(now - next);
            now = next;
            sum *= rescale;
            all *= rescale;
            [[unroll]] for (uint i = 0; i < AT_ONCE; i++) {
                float weight = i0 + i < s.splits ? exp(top[i] - now) : 0.0;
                all += weight * count[i];
                sum += weight * value[i];
            }
        }
        heads[pair * HEADS * DIM + e] = sum / all;
    }
}
