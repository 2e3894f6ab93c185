// Rows of whole documents: how many, how long, and what is refused.
#include "strait/config/document_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/config/parse.h"
#include "strait/config/validate.h"
#include "strait/data/document_loader.h"

namespace strait {
namespace {

using ::testing::HasSubstr;

strait::Run run_of(std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"model.shape.context=64", "train.global_batch_tokens=1024"});
  return parse_run("[model]\npreset = \"nano-char\"\n", "run.toml", sets);
}

std::string refusal(const std::vector<std::string>& sets, int64_t ranks) {
  try {
    validate_run(run_of(sets), ranks);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(DocumentRowSizes, AsFewRowsAsRanksAskFor) {
  const auto batch = [](const std::vector<std::string>& sets, int64_t ranks) {
    return resolve_batch(run_of(sets), ranks, 1);
  };
  EXPECT_EQ(batch({}, 1).sequence_tokens, 1024);
  EXPECT_EQ(batch({}, 1).global_batch_size, 1);
  EXPECT_EQ(batch({}, 4).sequence_tokens, 1024 / 4 + 3 * 64 / 4);
  EXPECT_EQ(batch({}, 4).accumulation, 1);
  EXPECT_EQ(batch({"train.micro_batch_size=2"}, 2).global_batch_size, 4);
  EXPECT_EQ(batch({"mesh.axes.sequence=4"}, 4).sequence_tokens, 1024);
  EXPECT_EQ(batch({"mesh.axes.sequence=3"}, 6).sequence_tokens, 546);  // 544 in six chunks
  EXPECT_EQ(batch({"mesh.axes.stage=2"}, 2).accumulation, 4);
  const Resolved limited = batch({"sequence.capacity_tokens=100", "mesh.axes.sequence=2"}, 4);
  EXPECT_EQ(limited.sequence_tokens, 200);
  EXPECT_EQ(limited.global_batch_size, 8);  // (1024 - 64) / (200 - 64) = 7.1
  EXPECT_EQ(tokens_per_step(run_of({}), limited), 1024);
}

/// Whatever documents a batch has.
TEST(DocumentRowSizes, RowsHoldAnyBatch) {
  const RandomStream stream(2, "batches");
  uint64_t at = 0;
  const auto draw = [&](int64_t least, int64_t most) {
    return least +
           static_cast<int64_t>(stream.below(at++, static_cast<uint64_t>(most - least + 1)));
  };
  for (int trial = 0; trial < 2000; ++trial) {
    strait::Run run = run_of({});
    const int64_t context = run.model.shape.context = draw(1, 100);
    run.train.global_batch_tokens = draw(context, 3000);
    run.mesh.axes.sequence = draw(1, 4);
    if (draw(0, 1) == 1) {
      const int64_t step = run.mesh.axes.sequence == 1 ? 1 : 2 * run.mesh.axes.sequence;
      run.sequence.capacity_tokens =
          (context + step - 1) / step * step / run.mesh.axes.sequence + draw(0, 60);
    }
    const int64_t data_ranks = draw(1, 6);
    const DocumentRows rows = document_rows(run, data_ranks);
    std::vector<int64_t> lengths;
    const int64_t longest = draw(0, 1) == 1 ? context : draw(1, context);
    for (int64_t left = run.train.global_batch_tokens; left > 0; left -= lengths.back())
      lengths.push_back(std::min(left, draw(0, 2) == 0 ? draw(1, longest) : longest));
    ASSERT_NO_THROW(pack_documents(lengths, rows.per_rank * data_ranks, rows.tokens)) << trial;
  }
}

TEST(DocumentRowSizes, RefusesWhatCannotActOnDocuments) {
  EXPECT_EQ(refusal({}, 4), "");
  EXPECT_THAT(refusal({"train.global_batch_tokens=63"}, 1),
              HasSubstr("the nearest valid value is 64"));
  EXPECT_THAT(refusal({"train.global_batch_size=6"}, 1), HasSubstr("leave one of them out"));
  EXPECT_THAT(refusal({"model.shape.dropout=0.1"}, 1), HasSubstr("model.shape.dropout = 0"));
  EXPECT_THAT(refusal({"sync.policy=diloco"}, 2), HasSubstr("sync.policy = \"every-step\""));
  EXPECT_THAT(refusal({"sequence.capacity_tokens=31", "mesh.axes.sequence=2"}, 2),
              HasSubstr("hold 60 tokens, and a document may have model.shape.context = 64; the "
                        "nearest valid value is 32"));
  EXPECT_THAT(refusal({"train.global_batch_tokens=0", "sequence.capacity_tokens=64"}, 1),
              HasSubstr("cannot take effect without train.global_batch_tokens"));
  EXPECT_EQ(refusal({"sequence.engine=heads", "mesh.axes.sequence=2"}, 2), "");
}

}  // namespace
}  // namespace strait
