// Heads exchanged inside rings, by the steps of the block alone (specs: sequences 9d, Z3).
#include "tests/model/heads_ring.h"

#include <gtest/gtest.h>

namespace strait::model {
namespace {

using test::distance;
using test::Form;
using test::HeadsRing;
using test::kSequences;
using test::kTokens;
using test::Numbers;
using test::random;
using test::Results;
using test::whole;

TEST(HeadsRingTest, AttentionAndItsGradientsEqualOneRank) {
  for (const Form& form : {Form{}, Form{.llama = true, .kv_heads = 4},
                           Form{.llama = true, .kv_heads = 4, .window = 7}}) {
    const ModelShape shape = form.shape();
    const BlockExtent extent = block_extent(shape, kSequences, kTokens, Dtype::kFloat64);
    const Numbers qkv = random(extent.rows * extent.qkv_width(), "test.qkv");
    const Numbers gradient = random(extent.rows * extent.attention_width(), "test.gradient");
    const Results want = whole(shape, qkv, gradient);
    for (const auto& [heads, rings] : {std::pair{2, 2}, {2, 4}, {4, 2}, {4, 3}, {4, 6}}) {
      SCOPED_TRACE(testing::Message() << shape.family << ", " << heads << " x " << rings);
      const Results got = HeadsRing(shape, heads, rings).run(qkv, gradient);
      EXPECT_LE(distance(got.attention, want.attention), 1e-12);
      EXPECT_LE(distance(got.qkv_gradient, want.qkv_gradient), 1e-12);
    }
  }
}

}  // namespace
}  // namespace strait::model
