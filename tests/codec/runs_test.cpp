#include "strait/codec/runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"

namespace strait::codec {
namespace {

TEST(CodecRuns, texts_are_read_back) {
  for (const char* text : {"none:64@1", "none:64|qsgd4/512:4096@2", "int8/7:3|e3m0/64:1@5"})
    EXPECT_EQ(print_runs(parse_runs(text)), text);
  EXPECT_TRUE(is_runs("none:64@1"));
  EXPECT_FALSE(is_runs("qsgd4/512+ef"));
  for (const char* text : {"none:64", "none@2", "none:@2", "none:4@", "none:4@0", "none:x@1"})
    EXPECT_THROW(parse_runs(text), InternalError) << text;
}

// By hand: 2 parts of 100 and of 33 elements.
TEST(CodecRuns, sizes_are_those_of_the_parts_of_each_run) {
  const Runs runs = parse_runs("qsgd4/64:199|none:65@2");
  EXPECT_EQ(runs.grain(0), 100);
  EXPECT_EQ(runs.grain(1), 33);
  EXPECT_EQ(runs.piece_bytes(Dtype::kFloat32), 56 + 2 * 8 + 33 * 4);
  EXPECT_EQ(runs.piece_bytes(Dtype::kFloat64), 56 + 2 * 8 + 33 * 8);
  EXPECT_EQ(runs.metadata_bytes(), 16);
  EXPECT_EQ(scale_bytes(print_runs(runs), 204), 16);
  EXPECT_EQ(scale_bytes(std::string("int4/64"), 36), 4);
}

}  // namespace
}  // namespace strait::codec
