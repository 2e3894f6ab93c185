// Which updates round their weights to bf16 themselves, and which leave that to an encode.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "strait/config/parse.h"
#include "strait/strategy/compose/design.h"
#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/sharding/kernels.h"
#include "strait/verify/verify.h"

namespace strait::strategy {
namespace {

using program::Op;
using program::Program;
using Sets = std::vector<std::string>;

Design design_of(const Sets& more) {
  Sets sets = {"model.preset=nano-char", "train.global_batch_size=8", "train.precision=bf16"};
  sets.insert(sets.end(), more.begin(), more.end());
  return make_design(parse_run("", "test.toml", sets), 4, 65);
}

/// Updates in all, those that round, and encodes of the optimizer's weights.
struct Counts {
  int updates = 0, rounding = 0, encodes = 0;
  explicit Counts(const Program& program) {
    program::for_each_instance(program, [&](const Op& op, const program::Loops&) {
      if (op.kernel == &kUpdate) {
        ++updates;
        rounding += program::operand_in(op.writes, kUpdateRounded) != nullptr;
      }
      if (op.kernel == &kEncode) {
        const int from = op.reads.front().array;
        encodes += program.arrays[static_cast<size_t>(from)].name.starts_with("p.");
      }
    });
  }
};

// Under the others (zero3, ...) weights are rounded where they are gathered.
TEST(Rounding, IsPartOfTheUpdateWhereTheOptimizerHasItsOwnWeights) {
  for (const char* preset : {"ddp", "zero1", "zero2"}) {
    for (const char* in_backward : {"false", "true"}) {
      SCOPED_TRACE(std::string(preset) + " in backward: " + in_backward);
      const Design design =
          design_of({std::string("placement.preset=") + preset,
                     std::string("optimizer.in_backward=") + in_backward, "train.clip_norm=0"});
      EXPECT_TRUE(program::verify(design.programs).empty());
      for (const Program& program : design.steady()) {
        const Counts counts(program);
        EXPECT_EQ(counts.updates, 5);
        EXPECT_EQ(counts.rounding, counts.updates);
        EXPECT_EQ(counts.encodes, 0);
      }
    }
  }
}

TEST(Rounding, IsLeftToAnEncodeWhereTheUpdateCannotDoIt) {
  const Sets cases[] = {
      {"placement.preset=zero1", "placement.codecs.update=int8/2048"},
      {"placement.preset=ddp", "mesh.axes.stage=2", "mesh.axes.data=2", "train.micro_batch_size=1",
       "pipeline.order=zero-bubble-h2", "pipeline.post_validation=true"}};
  for (const Sets& sets : cases) {
    SCOPED_TRACE(sets[1]);
    const Design design = design_of(sets);
    for (const Program& program : design.steady()) {
      const Counts counts(program);
      EXPECT_GT(counts.updates, 0);
      EXPECT_EQ(counts.rounding, 0);
      EXPECT_EQ(counts.encodes, counts.updates);
    }
  }
}

TEST(Rounding, WideWeightsAreNotRounded) {
  for (const char* precision : {"fp32", "fp64"}) {
    const Design design = design_of({std::string("train.precision=") + precision});
    for (const Program& program : design.steady()) {
      const Counts counts(program);
      EXPECT_EQ(counts.rounding, 0);
      EXPECT_EQ(counts.encodes, 0);
    }
  }
}

}  // namespace
}  // namespace strait::strategy
