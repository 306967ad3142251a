// The tokens of a row that the mask allows: token i is bit i % 32 of i32 word i / 32.
#pragma once
#include "launch.hpp"

namespace bitnet::BITNET_PATH {

struct Allowed {
  const uint32_t* words;  // null: all tokens

  Allowed(const Launch& launch, uint32_t index, uint32_t l, uint32_t vocab)
      : words(launch.constants.mask != 0 ? view<uint32_t>(launch, index) + size_t(l) * ceil_div(vocab, 32) : nullptr) {}

  bool operator()(uint32_t token) const { return words == nullptr || (words[token / 32] >> token % 32 & 1) != 0; }
};

}  // namespace bitnet::BITNET_PATH
