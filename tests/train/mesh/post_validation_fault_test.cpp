// Pipelines whose updates are validated by the next step: a rank that is lost while the sum that
// validates is under way is named, and runs go on in any other mesh.
#include <gtest/gtest.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "tests/pace.h"
#include "tests/train/instances.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

constexpr double kDeadline = 0.5;  // on an idle machine
const char* const kSum = "pending = all_reduce(pending)";
const char* const kBeginning = "step, agreed = begin_step(progress)";

/// A mesh of `ranks`, and how its ranks share the work.
struct Form {
  int64_t ranks;
  Sets sets;
  bool validates = true;
};

/// That take updates back now and then.
Form validated(int64_t ranks, Sets sets) {
  sets.insert(sets.end(), {"pipeline.order=zero-bubble-h2", "pipeline.post_validation=true"});
  return {ranks, std::move(sets)};
}

class PostValidationFaults : public test::MeshRuns {
 protected:
  strait::Run run_of(const Form& form, const Sets& more) {
    Sets sets = {"train.steps=12",
                 "train.global_batch_size=8",
                 "train.micro_batch_size=1",
                 "train.clip_norm=1.0",
                 "model.shape.layers=4",
                 "model.shape.heads=4",
                 "model.shape.kv_heads=4",
                 "model.shape.width=24",
                 "model.shape.ffn_width=40",
                 "model.shape.vocabulary=24",
                 "model.shape.dropout=0.1",
                 "checkpoint.resume=auto",
                 "optimizer.decay_steps=20",
                 "runtime.deadline_seconds=" + std::to_string(test::deadline_here(kDeadline))};
    sets.insert(sets.end(), form.sets.begin(), form.sets.end());
    sets.insert(sets.end(), more.begin(), more.end());
    return small_run(folder_.path(), sets);
  }
  const Trained& one_rank() {
    if (one_rank_.losses.empty())
      one_rank_ =
          test::trained(run_of({1, {"train.micro_batch_size=8"}, false}, {}), 1, next_folder());
    return one_rank_;
  }
  train::Outcome train(const Form& form, const Sets& more, const std::string& run_dir,
                       const train::Hooks& hooks = {}) {
    strait::Run run = run_of(form, more);
    run.output.run_dir = run_dir;
    return test::outcome_of(make_job(run, form.ranks), hooks);
  }

  /// What ranks of a step wait for each other in, of each rank in its order.
  std::vector<std::vector<std::string>> transfers_of(const Form& form) {
    const Job job = make_job(run_of(form, {"checkpoint.resume=never"}), form.ranks);
    std::vector<std::vector<std::string>> transfers;
    for (int64_t rank = 0; rank < form.ranks; ++rank) {
      transfers.emplace_back();
      for (const auto& one : test::instances_of(program::class_of(job.design.steady(), rank)))
        if (one.transfer) transfers.back().push_back(one.text);
    }
    return transfers;
  }

 private:
  Trained one_rank_;
};

/// Loses `rank` in the first operation of `step` with this text; what the others were told.
ErrorPlace place_of_loss(const std::function<void(const train::Hooks&)>& train, int64_t rank,
                         int64_t step, const std::string& operation) {
  train::Hooks hooks;
  hooks.faults.lost_rank = rank;
  hooks.faults.lost_step = step;
  hooks.faults.lost_operation = operation;
  try {
    train(hooks);
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), 4) << error.what();
    EXPECT_NE(std::string(error.what()).find("rank " + std::to_string(rank) + " is stage"),
              std::string::npos)
        << error.what();
    return error.place();
  }
  ADD_FAILURE() << "nobody missed " << operation;
  return {};
}

/// In the sum, between two steps and before a checkpoint; then in the step beside it. What goes on
/// in another mesh ends as one rank that nobody disturbed.
TEST_F(PostValidationFaults, ARankThatIsLostBesideItsSumIsNamedAndTheRunGoesOnElsewhere) {
  const std::vector<Form> forms = {
      validated(2, {"mesh.axes.stage=2"}),
      validated(4, {"mesh.axes.stage=4"}),
      validated(4, {"mesh.axes.stage=2", "placement.preset=zero1"}),
  };
  const std::vector<Form> others = {
      validated(4, {"mesh.axes.stage=2", "mesh.axes.x=2", "placement.preset=ddp"}),
      {2, {"placement.preset=zero3", "train.micro_batch_size=4"}, false},
      {4,
       {"mesh.axes.stage=2", "placement.preset=zero3", "pipeline.order=interleaved",
        "pipeline.chunks_per_stage=2"},
       false},
  };
  for (size_t number = 0; number < forms.size(); ++number) {
    const Form& form = forms[number];
    SCOPED_TRACE(::testing::PrintToString(form.sets));
    const auto transfers = transfers_of(form);
    const auto waits_in = [&](const std::string& operation) {
      return std::ranges::any_of(
          transfers, [&](const auto& one) { return std::ranges::count(one, operation) > 0; });
    };
    for (const int64_t rank : {int64_t{0}, form.ranks - 1}) {
      const std::string run_dir = next_folder();
      const Sets saves = {"checkpoint.every_steps=4"};
      // The sum is under way beside the next step, whose transfers wait for the rank too: the first
      // deadline that passes is told, and they are about a millisecond apart. A rank that is slow
      // stands at the beginning of that step.
      const auto lost = [&](int64_t step, const std::string& operation) {
        const ErrorPlace place =
            place_of_loss([&](const train::Hooks& hooks) { train(form, saves, run_dir, hooks); },
                          rank, step, operation);
        EXPECT_EQ(place.rank, rank) << operation;
        const std::string told = place.operation.value_or("none");
        EXPECT_TRUE(waits_in(told) || (operation == kSum && told == kBeginning)) << told;
        EXPECT_TRUE(place.step == step || (place.step == step + 1 && operation == kSum))
            << operation << " of step " << *place.step;
      };
      lost(2, kSum);
      lost(6, kSum);
      lost(8, kSum);
      const auto& own = transfers[static_cast<size_t>(rank)];
      const auto message = std::ranges::find_if(own, [](const std::string& text) {
        return text.find("micro-batch") != std::string::npos;
      });
      ASSERT_NE(message, own.end());
      lost(7, *message);
      EXPECT_EQ(checkpoint::CheckpointReader(run_dir).manifest().step, 4);
      expect_equal(test::trained(run_of(others[number], saves), others[number].ranks, run_dir),
                   one_rank());
    }
  }
}

/// Every launch another mesh, some of which validate behind their updates.
TEST_F(PostValidationFaults, CheckpointsGoOnInOtherMeshes) {
  const std::vector<Form> parts = {
      validated(2, {"mesh.axes.stage=2"}),
      validated(4, {"mesh.axes.stage=2", "placement.preset=zero1"}),
      {2, {"placement.preset=zero3", "train.micro_batch_size=4"}, false},
      validated(4, {"mesh.axes.stage=2", "mesh.axes.x=2", "placement.preset=ddp"}),
      validated(4, {"mesh.axes.stage=4", "pipeline.cuts=1,2,3"}),
  };
  const std::string run_dir = next_folder();
  int64_t step = 0, taken_back = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    SCOPED_TRACE(::testing::PrintToString(parts[part].sets));
    step += part + 1 == parts.size() ? 12 - step : 2;
    const train::Outcome outcome =
        train(parts[part], {"train.steps=" + std::to_string(step)}, run_dir);
    EXPECT_TRUE(parts[part].validates || outcome.steps_taken_back == 0);
    taken_back += outcome.steps_taken_back;
    if (step < 12) continue;
    Trained got{outcome.losses, outcome.parameter_hash,
                test::master_weights(run_dir, run_of(parts[part], {}))};
    got.validation = outcome.validation.back().loss;
    expect_equal(got, one_rank());
  }
  EXPECT_GT(taken_back, 0);
}

}  // namespace
}  // namespace strait
