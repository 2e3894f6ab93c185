// Every family trains on four ranks what it trains on one, whatever the mesh; predictions of memory
// hold, and so do the bytes of the one sum that Qwen 3 adds.
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::Trained;

using Sets = std::vector<std::string>;

class Families : public test::MeshRuns, public ::testing::WithParamInterface<const char*> {
 protected:
  strait::Run run_of(const Sets& more) {
    const std::string family = GetParam();
    Sets sets = {"model.family=" + family,
                 "model.shape.heads=4",
                 "model.shape.vocabulary=24",
                 "model.shape.kv_heads=2",
                 "model.shape.width=24",
                 "model.shape.ffn_width=36",
                 "train.global_batch_size=8",
                 "train.clip_norm=0.3",
                 "runtime.threads_per_rank=1",
                 "train.micro_batch_size=2",
                 "model.shape.tied_head=false",
                 "placement.preset=zero3",
                 family == "qwen2" ? "model.shape.bias=true" : "model.shape.bias=false"};
    if (family == "mistral")
      sets.insert(sets.end(), {"model.shape.window=4", "model.shape.head_width=10"});
    if (family == "qwen3") sets.push_back("model.shape.head_width=10");
    const bool gemma = family.starts_with("gemma");
    // Of three blocks the second attends all tokens.
    if (gemma)
      sets.insert(sets.end(), {"model.shape.head_width=10", "model.shape.window=4",
                               "model.shape.window_pattern=2", "model.shape.query_scalar=7",
                               "model.shape.tied_head=true", "model.rope.factor=2",
                               "model.rope.original_context=1"});
    if (family == "gemma3") sets.push_back("model.rope.local_theta=50");
    if (family == "gemma2")  // near what scores and logits of this size are
      sets.insert(sets.end(), {"model.shape.score_cap=0.1", "model.shape.logit_cap=1"});
    if (family != "olmo2" && !gemma) sets.push_back("model.shape.dropout=0.1");
    sets.insert(sets.end(), more.begin(), more.end());
    return small_run(folder_.path(), sets);
  }
  bool splits() const { return std::string(GetParam()) != "olmo2"; }
  Trained train(int64_t ranks, const Sets& more = {}) {
    return test::trained(run_of(more), ranks, next_folder());
  }
};

TEST_P(Families, FourRanksTrainWhatOneTrains) {
  const Trained serial = train(1, {"placement.preset=ddp"});
  EXPECT_LT(serial.losses.back(), serial.losses.front());
  std::vector<Sets> meshes = {{},
                              {"placement.preset=ddp", "train.recompute=block"},
                              {"mesh.axes.stage=2", "train.recompute=every:2"},
                              {"placement.preset=zero2", "train.micro_batch_size=1"}};
  if (splits())
    meshes.insert(meshes.end(), {{"mesh.axes.x=2"},
                                 {"mesh.axes.x=2", "mesh.axes.stage=2"},
                                 {"mesh.axes.x=2", "train.recompute=block"}});
  for (const Sets& mesh : meshes) {
    SCOPED_TRACE(mesh.empty() ? "zero3" : mesh.front() + " " + mesh.back());
    expect_equal(train(4, mesh), serial);
  }
}

/// Both round activations at the same places, so that their losses differ by less than the
/// roundings move a loss (2^-8 of it).
TEST_P(Families, Bfloat16TrainsAlongsideDouble) {
  const Trained want = train(1, {"train.steps=8"});
  const Trained got = train(4, {"train.steps=8", "train.precision=bf16"});
  for (size_t step = 0; step < want.losses.size(); ++step)
    EXPECT_NEAR(got.losses[step], want.losses[step], 0x1p-7 * want.losses[step]) << step;
}

TEST_P(Families, MemoryIsWhatTheAllocatorSaw) {
  for (const char* recompute : {"none", "block"})
    for (const int64_t x : {1, splits() ? 2 : 1}) {
      const train::Outcome outcome =
          test::train_small(run_of({"train.steps=3", std::string("train.recompute=") + recompute,
                                    "mesh.axes.x=" + std::to_string(x)}),
                            4, next_folder());
      for (size_t rank = 0; rank < outcome.pool_peak_bytes.size(); ++rank)
        EXPECT_NEAR(static_cast<double>(outcome.predicted_peak_bytes[rank]),
                    static_cast<double>(outcome.pool_peak_bytes[rank]),
                    0.05 * static_cast<double>(outcome.pool_peak_bytes[rank]))
            << "rank " << rank << " recompute " << recompute << " x " << x;
    }
}

TEST_P(Families, ResumingOnAnotherMeshChangesNothing) {
  const std::string run_dir = next_folder();
  const auto until = [&](int64_t steps, int64_t ranks, const Sets& more) {
    Sets sets = {"train.steps=" + std::to_string(steps), "checkpoint.resume=auto",
                 "optimizer.decay_steps=20"};
    sets.insert(sets.end(), more.begin(), more.end());
    return test::trained(run_of(sets), ranks, run_dir);
  };
  until(7, 2, {"placement.preset=zero1"});
  expect_equal(until(20, 4, {splits() ? "mesh.axes.x=2" : "mesh.axes.stage=2"}), train(1));
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         ::testing::Values("llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma2",
                                           "gemma3"),
                         [](const auto& family) { return std::string(family.param); });

using FamilyBytes = test::MeshRuns;

/// Behind what Llama's ranks of x sum, the gradients of the norms of queries and keys: two heads'
/// width per block and micro-step.
TEST_F(FamilyBytes, Qwen3SumsTheGradientsOfItsHeadNormsOverX) {
  std::map<std::string, int64_t> sent;
  for (const std::string family : {"llama", "qwen3"}) {
    const strait::Run run =
        small_run(folder_.path(),
                  {"model.family=" + family, "model.shape.vocabulary=24", "model.shape.heads=4",
                   "model.shape.kv_heads=2", "model.shape.width=24", "model.shape.ffn_width=36",
                   "train.global_batch_size=8", "train.micro_batch_size=2", "mesh.axes.x=2",
                   "train.steps=1", "model.shape.bias=false"});
    const train::Outcome outcome = test::train_small(run, 2, next_folder());
    for (const auto& [row, bytes] : test::bytes_of(outcome.traffic, 1)) sent[family] += bytes;
  }
  // Each of two ranks sends half a vector twice: 3 blocks, 4 micro-steps, 2 x 6 numbers of 8 bytes.
  EXPECT_EQ(sent["qwen3"] - sent["llama"], 2 * 3 * 4 * 2 * 6 * 8);
}

using FamilyDocuments = test::MeshRuns;

/// Whole documents: windows count in a document, and blocks differ there too.
TEST_F(FamilyDocuments, Gemma3TrainsOnDocumentsThatRanksShare) {
  const auto train = [&](int64_t ranks, const Sets& more) {
    Sets sets = {"model.family=gemma3",           "model.shape.bias=false",
                 "model.shape.kv_heads=2",        "model.shape.heads=4",
                 "model.shape.width=16",          "model.shape.ffn_width=24",
                 "model.shape.window=9",          "model.shape.window_pattern=2",
                 "model.shape.query_scalar=9",    "model.rope.local_theta=100",
                 "model.shape.context=40",        "model.shape.vocabulary=24",
                 "data.document_separator=.\n",   "train.global_batch_size=12",
                 "train.global_batch_tokens=400", "train.steps=8"};
    sets.insert(sets.end(), more.begin(), more.end());
    return test::trained(small_run(folder_.path(), sets), ranks, next_folder());
  };
  const Trained serial = train(1, {});
  for (const char* engine : {"ring", "gathered"}) {
    SCOPED_TRACE(engine);
    expect_equal(train(4, {"mesh.axes.sequence=4", std::string("sequence.engine=") + engine}),
                 serial);
  }
}

TEST_F(FamilyBytes, Olmo2RefusesAxisX) {
  const strait::Run run =
      small_run(folder_.path(), {"model.family=olmo2", "model.shape.bias=false", "mesh.axes.x=2"});
  try {
    make_job(run, 2);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "mesh.axes.x");
    EXPECT_NE(std::string(error.what()).find("nearest valid value is 1"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace strait
