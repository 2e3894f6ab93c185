// What `strait plan --json` says of candidates that were left out.
#include <gtest/gtest.h>

#include "strait/plan/search.h"

namespace strait::plan {
namespace {

TEST(SearchJson, BytesAreKnownOfWhatDoesNotFitAlone) {
  SearchResult result;
  result.rejected.push_back({"ddp", "memory", 2, 300, 200, "optimizer"});
  result.rejected.push_back({"zero3", "1 rank has nothing to share", 1});
  const Json rejected = search_json(result, 4, 10, "").at("rejected");
  EXPECT_EQ(rejected.as_array()[0].at("needs_bytes").as_integer(), 300);
  EXPECT_EQ(rejected.as_array()[0].at("has_bytes").as_integer(), 200);
  EXPECT_EQ(rejected.as_array()[0].at("where").as_string(), "optimizer");
  for (const char* unknown : {"needs_bytes", "has_bytes", "where"})
    EXPECT_TRUE(rejected.as_array()[1].at(unknown).is_null()) << unknown;
}

}  // namespace
}  // namespace strait::plan
