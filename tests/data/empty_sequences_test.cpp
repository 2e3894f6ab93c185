// Data in which a sequence may have no token to predict, against every window.
#include "strait/data/empty_sequences.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "strait/base/random.h"
#include "strait/data/loader.h"

namespace strait {
namespace {

/// Documents begin at the token 1; `as_list` says where instead.
TokenPart part_of(const std::vector<int32_t>& tokens, bool as_list) {
  TokenPart part;
  part.tokens = Tokens(std::vector<int32_t>(tokens));
  if (!as_list) {
    part.document_token = 1;
    return part;
  }
  part.document_starts = {0};
  for (size_t at = 1; at < tokens.size(); ++at)
    if (tokens[at] == 1) part.document_starts.push_back(static_cast<int64_t>(at));
  return part;
}

/// Whether behind some window of `context` tokens but the first all are 1.
bool has_empty_window(const std::vector<int32_t>& tokens, int64_t context) {
  const std::vector<int32_t> ones(static_cast<size_t>(context), 1);
  return std::search(tokens.begin() + 1, tokens.end(), ones.begin(), ones.end()) != tokens.end();
}

TEST(EmptySequences, AreFoundWhereverTheyAre) {
  const RandomStream stream(5, "documents");
  int found = 0;
  for (uint64_t trial = 0; trial < 400; ++trial) {
    std::vector<int32_t> tokens;
    for (uint64_t at = 0; at < 24; ++at)
      tokens.push_back(stream.below(trial * 24 + at, 3) == 0 ? 1 : 0);
    for (const int64_t context : {1, 2, 3, 5}) {
      const bool expected = has_empty_window(tokens, context);
      found += expected ? 1 : 0;
      for (const bool as_list : {false, true})
        EXPECT_EQ(may_have_empty_sequences(part_of(tokens, as_list), context), expected)
            << "trial " << trial << ", context " << context;
    }
  }
  EXPECT_GT(found, 400);
  EXPECT_LT(found, 1400);
}

TEST(EmptySequences, AStreamHasNone) {
  TokenPart part;
  part.tokens = Tokens(std::vector<int32_t>{1, 1, 1});
  EXPECT_FALSE(may_have_empty_sequences(part, 1));
}

}  // namespace
}  // namespace strait
