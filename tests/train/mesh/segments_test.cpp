// Programs whose blocks are cut behind every sum, on whole blocks: they train to the same bits as
// the fused ones.
#include <gtest/gtest.h>

#include "strait/draft/segment_ops.h"
#include "strait/strategy/compose/design.h"
#include "tests/strategy/passes.h"
#include "tests/train/small_run.h"

namespace strait::train {
namespace {

using test::small_run;
using test::TemporaryFolder;

struct Case {
  std::string family, precision, recompute, placement;
  double dropout = 0;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* family : {"gpt2", "llama"})
    for (const char* precision : {"fp64", "fp32", "bf16"})
      cases.push_back({family, precision, "none", "ddp", 0.1});
  cases.push_back({"gpt2", "fp64", "every:2", "zero3", 0.1});
  cases.push_back({"gpt2", "fp64", "block", "zero3", 0});
  return cases;
}

strait::Run run_of(const Case& c, const std::string& folder) {
  return small_run(folder, {"model.family=" + c.family, "train.precision=" + c.precision,
                            "train.recompute=" + c.recompute, "train.steps=3",
                            "train.micro_batch_size=6", "placement.preset=" + c.placement,
                            "model.shape.dropout=" + std::to_string(c.dropout),
                            "evaluation.every_steps=3", "evaluation.batches=1"});
}

/// Composes the kinds that compute anew, without `fuse`.
void cut_blocks(strategy::Design& design) {
  draft::StepOptions options;
  options.micro_batch_size = design.batch.micro_batch_size;
  options.tokens = design.run.model.shape.context;
  options.accumulation = design.batch.accumulation;
  options.dtype = design.dtype;
  options.recompute = draft::parse_recompute(design.run.train.recompute);
  options.optimizer = {{"m", "first_moment"}, {"v", "second_moment"}};
  for (program::StepKind& kind : design.programs.kinds) {
    if (kind.name == strategy::kPublish) continue;
    options.purpose =
        kind.name == strategy::kSteady ? draft::Purpose::kTrain : draft::Purpose::kEvaluate;
    kind.classes = {test::compose_with(
        {design.layout.local_shape(), design.placement, design.cluster, design.mesh}, options,
        kind.name.c_str(), [](draft::Draft&) {})};
  }
}

TEST(Segments, CutBlocksTrainToTheBitsOfFusedOnes) {
  const TemporaryFolder folder;
  int number = 0;
  for (const Case& c : all_cases()) {
    strait::Run run = run_of(c, folder.path());
    const auto job = [&] {
      run.output.run_dir = folder.path() + "/" + std::to_string(number++);
      return make_job(run, 2);
    };
    const Outcome fused = test::outcome_of(job());
    Job in_pieces = job();
    cut_blocks(in_pieces.design);
    const Outcome cut = test::outcome_of(std::move(in_pieces));
    const std::string what = c.family + " " + c.precision + " " + c.recompute;
    EXPECT_EQ(cut.losses, fused.losses) << what;
    EXPECT_EQ(cut.parameter_hash, fused.parameter_hash) << what;
    ASSERT_EQ(cut.validation.size(), fused.validation.size());
    EXPECT_EQ(cut.validation.back().loss, fused.validation.back().loss) << what;
  }
}

}  // namespace
}  // namespace strait::train
