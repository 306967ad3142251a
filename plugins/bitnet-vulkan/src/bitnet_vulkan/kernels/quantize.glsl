// codes.glsl for rows in memory with WIDTH padded columns. The including kernel also has the bindings gamma and gamma4,
// and
//     float raw(uint row, uint column)
//     vec4 raw4(uint row, uint word)            for rows that are a multiple of 4 long
#include "codes.glsl"

void load_row(uint row, uint columns, out vec4 x[ROW_WORDS], out vec4 g[ROW_WORDS]) {
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
        uint word = LID + i * GROUP;
        x[i] = g[i] = vec4(0.0);
        if (columns % 4 != 0) {
            for (uint e = 0; e < 4 && 4 * word + e < columns; e++) {
                x[i][e] = raw(row, 4 * word + e);
                if (NORM == 1) g[i][e] = gamma[4 * word + e];
            }
        } else if (4 * word < columns) {
            x[i] = raw4(row, word);
            if (NORM == 1) g[i] = gamma4[word];  // loaded early
        }
    }
}
