// Part of main(): loads the first weights (product_row.glsl).
    uint lane = LID % LANES, n0 = gl_WorkGroupID.x * TILE_N + LID / LANES * ROWS_PER, own = n0 + lane;
    bool writes = lane < ROWS_PER && own < p.outs;
    uvec4 words[ROWS_PER][2];
    vec2 units[ROWS_PER];  // scales of columns 0..63 and 64..127 of a block
    uint first = lane;
    LOAD
    float before = ADD == 1 && writes ? y[p.y_first + own] : 0.0;
