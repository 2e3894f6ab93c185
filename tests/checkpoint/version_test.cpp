// A checkpoint that version 0.1 wrote: two ranks, zero3, three steps of a model of a few hundred
// elements.
#include <gtest/gtest.h>

#include <algorithm>

#include "strait/base/file.h"
#include "strait/checkpoint/inspect.h"
#include "strait/checkpoint/reader.h"
#include "tests/paths.h"

namespace strait::checkpoint {
namespace {

const std::string kRun = test::in_source("tests/fixtures/checkpoint-0.1");

TEST(Version, ACheckpointOfTheFirstVersionLoads) {
  const CheckpointReader reader(kRun);
  EXPECT_EQ(reader.manifest().step, 3);
  // As the run that wrote it reported its weights.
  EXPECT_EQ(stored_parameter_hash(reader), "051f27993210a5e7e850db8e15330df1");
  for (const UnitRecord& unit : reader.manifest().units)
    for (const char* state : {kFirstMoment, kSecondMoment}) {
      std::vector<float> values(static_cast<size_t>(unit.elements));
      reader.load({unit.name, state, 0, unit.elements}, std::as_writable_bytes(std::span(values)));
      EXPECT_GT(std::count_if(values.begin(), values.end(), [](float v) { return v != 0; }), 0);
    }
  reader.verify_share(0, 1);
  EXPECT_TRUE(inspect(kRun).at("complete").as_bool());
}

TEST(Version, ItsManifestIsWrittenAsItWas) {
  const std::string path = CheckpointReader(kRun).path() + "/manifest.json";
  EXPECT_EQ(manifest_text(parse_manifest(read_file(path), path)), read_file(path));
}

}  // namespace
}  // namespace strait::checkpoint
