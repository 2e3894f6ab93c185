// L-GreCo while a run trains: the choice is that of the plain program over the gradients that were
// gathered, all ranks take it up or the run ends, and a run that goes on has the same bits.
#include "strait/persist/layer_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/compression/layer_choice.h"
#include "strait/compression/low_rank.h"
#include "strait/strategy/adapt/adapt.h"
#include "strait/strategy/adapt/kernels.h"
#include "strait/strategy/sharding/kernels.h"
#include "strait/strategy/sharding/low_rank.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

using test::small_run;
using test::TemporaryFolder;
using testing::HasSubstr;

class LayerSettingsTest : public ::testing::Test {
 protected:
  strait::Run run_of(const std::string& codec, std::vector<std::string> sets) {
    sets.insert(sets.begin(),
                {"placement.preset=ddp", "compression.codec=" + codec, "compression.adapt=lgreco",
                 "compression.skip_below_elements=200", "compression.adapt_every_steps=4",
                 "lgreco.start_step=4", "lgreco.gather_steps=3", "train.precision=fp32",
                 "optimizer.decay_steps=10", "train.steps=10"});
    return small_run(folder_.path(), sets);
  }
  train::Outcome train(strait::Run run, int64_t ranks, const std::string& name,
                       const train::Hooks& hooks = {}) {
    run.output.run_dir = folder_.path() + "/" + name;
    const Job job = make_job(run, ranks);
    const train::Outcome outcome = test::outcome_of(job, hooks);
    report_ = train::outcome_json(job, outcome);
    design_.emplace(job.design);
    return outcome;
  }
  TemporaryFolder folder_;
  std::optional<strategy::Design> design_;  // of the last run
  Json report_;
};

/// Sums of gradients by unit, made by looking at what the kernel reads on rank 0.
struct Gathered {
  std::mutex mutex;
  std::map<int64_t, std::map<int64_t, std::vector<float>>> by_step;  // [step][unit]
  std::map<int64_t, std::set<std::string>> codecs;                   // [step] encoded in

  void look(int64_t rank, const runtime::Instance& instance) {
    const std::lock_guard lock(mutex);
    if (instance.op->kernel == &strategy::kEncode)
      codecs[instance.step + 1].insert(instance.op->codec);
    if (instance.op->kernel == &strategy::kProjectRight)
      codecs[instance.step + 1].insert(
          program::attribute<std::string>(*instance.op, strategy::kLowRankUnit));
    if (rank != 0 || instance.op->kernel != &strategy::kGatherGradient) return;
    const runtime::Bound& gradient = *instance.find_read(strategy::kGatheredGradient);
    const runtime::Bound& sum = *instance.find_write(strategy::kGathered);
    const float* values = static_cast<const float*>(gradient.data);
    by_step[instance.step + 1][instance.array(sum).address.unit + sum.index] =
        std::vector<float>(values, values + sum.bytes / 4);
  }
  /// Of the steps `last` - 2 to `last`.
  std::vector<float> sum(int64_t unit, int64_t last) const {
    std::vector<float> total = by_step.at(last - 2).at(unit);
    for (int64_t step = last - 1; step <= last; ++step)
      for (size_t i = 0; i < total.size(); ++i) total[i] += by_step.at(step).at(unit)[i];
    return total;
  }
};

/// Norm of what is lost, part by part, without the library's own form.
double plain_error(const codec::CodecSpec& setting, const std::vector<float>& x, int64_t parts) {
  const int64_t size = static_cast<int64_t>(x.size()), grain = (size + parts - 1) / parts;
  double squares = 0;
  for (int64_t begin = 0; begin < size; begin += grain) {
    const int64_t count = std::min(grain, size - begin);
    std::vector<uint8_t> piece(static_cast<size_t>(codec::encoded_bytes(setting, count)));
    std::vector<float> y(static_cast<size_t>(count));
    EXPECT_EQ(codec::encode(setting, {x.data() + begin, Dtype::kFloat32, count}, piece), 0);
    codec::decode(setting, piece, {y.data(), Dtype::kFloat32, count});
    for (int64_t i = 0; i < count; ++i)
      squares += std::pow(
          static_cast<double>(x[static_cast<size_t>(begin + i)]) - y[static_cast<size_t>(i)], 2);
  }
  return std::sqrt(squares);
}

/// The same of factors, by power iterations of each rank alone.
double plain_error_of_factors(const strategy::AdaptedLayer& layer, int64_t rank,
                              const std::vector<float>& x) {
  const compression::LowRankShape shape{layer.rows, layer.columns(), rank};
  const std::vector<double> matrix(x.begin(), x.end());
  std::vector<double> left(static_cast<size_t>(shape.left_elements())),
      right(static_cast<size_t>(shape.right_elements())), product(x.size());
  compression::fill_right<double>(shape, right, hash_name(layer.name));
  for (int iteration = 0; iteration < 5; ++iteration) {
    compression::project_right<double>(shape, matrix, right, left);
    compression::orthonormalise<double>(shape, left);
    compression::project_left<double>(shape, matrix, left, right);
  }
  compression::expand<double>(shape, left, right, product);
  double squares = 0;
  for (size_t i = 0; i < matrix.size(); ++i) squares += std::pow(matrix[i] - product[i], 2);
  return std::sqrt(squares);
}

/// Settings of the layers of each unit, as what encodes or projects is marked with.
std::set<std::string> marks(const strategy::Design& design, const std::vector<codec::Runs>& runs,
                            int64_t uniform_rank) {
  std::set<std::string> texts;
  for (size_t unit = 0; unit < runs.size(); ++unit)
    texts.insert(uniform_rank > 0 ? strategy::print_low_rank(strategy::low_rank_unit(
                                        design.shape.units[unit], runs[unit], uniform_rank))
                                  : codec::print_runs(runs[unit]));
  return texts;
}

TEST_F(LayerSettingsTest, ChoicesAreThoseOfThePlainProgram) {
  for (const auto& [codec, ranks] : std::vector<std::pair<std::string, int64_t>>{
           {"qsgd4/64", 2}, {"topk/0.1+ef", 4}, {"powersgd/2+ef", 3}}) {
    Gathered gathered;
    train::Hooks hooks;
    hooks.before_op = [&](int64_t rank, const runtime::Instance& instance) {
      gathered.look(rank, instance);
    };
    const train::Outcome outcome =
        train(run_of(codec, {}), ranks, "plain" + std::to_string(ranks), hooks);
    ASSERT_EQ(outcome.settings.size(), 2u);
    const auto layers = strategy::adapted_layers(design_->shape, design_->placement.layers);
    ASSERT_GT(layers.size(), 6u);
    for (size_t nth = 0; nth < 2; ++nth) {
      const persist::ChosenSettings& got = outcome.settings[nth];
      EXPECT_EQ(got.step, nth == 0 ? 4 : 8);
      std::vector<compression::LayerCandidates> candidates;
      for (const strategy::AdaptedLayer& layer : layers) {
        const std::vector<float> unit = gathered.sum(layer.unit, got.step);
        const std::vector<float> x(unit.begin() + layer.first,
                                   unit.begin() + layer.first + layer.uniform.elements);
        compression::LayerCandidates& of = candidates.emplace_back();
        for (const codec::CodecSpec& setting : strategy::settings_of(layer)) {
          if (setting == layer.uniform.codec) of.reference = of.candidates.size();
          if (codec::is_low_rank(setting)) {
            of.candidates.push_back(
                {2 * (ranks - 1) * 4 * setting.rank * (layer.rows + layer.columns()),
                 plain_error_of_factors(layer, setting.rank, x)});
            continue;
          }
          const int64_t piece =
              codec::encoded_bytes(setting, (layer.uniform.elements + ranks - 1) / ranks);
          of.candidates.push_back(
              {2 * ranks * (ranks - 1) * piece, plain_error(setting, x, ranks)});
        }
      }
      const compression::LayerChoice want = compression::choose_per_layer(candidates);
      EXPECT_EQ(std::vector<size_t>(got.choice.settings.begin(), got.choice.settings.end()),
                want.chosen)
          << codec << " after step " << got.step;
      EXPECT_EQ(got.choice.bytes, want.bytes);
      EXPECT_LT(got.choice.bytes, got.choice.uniform_bytes);
      // From the next step on, and not before, all ranks encode in them.
      const auto used = [&](const strategy::LayerSettings& settings) {
        return marks(*design_, strategy::with_settings(design_->placement.layers, layers, settings),
                     design_->placement.codecs.gradients.back().rank);
      };
      EXPECT_EQ(gathered.codecs.at(got.step),
                used(nth == 0 ? strategy::uniform_settings(layers)
                              : outcome.settings[nth - 1].choice.settings));
      EXPECT_EQ(gathered.codecs.at(got.step + 1), used(got.choice.settings));
    }
    const Json& told = report_.at("compression");
    EXPECT_EQ(told.at("layers").size(), layers.size());
    EXPECT_EQ(told.at("choices").size(), 2u);
    const std::vector<std::string> names =
        strategy::setting_names(layers, outcome.settings.back().choice.settings);
    for (size_t l = 0; l < layers.size(); ++l)
      EXPECT_EQ(told.at("layers").as_array()[l].at("setting").as_string(), names[l]);
    for (const report::StepMetrics& metrics : report::read_metrics(
             folder_.path() + "/plain" + std::to_string(ranks) + "/metrics.jsonl")) {
      EXPECT_EQ(metrics.layer_settings.empty(), metrics.step != 4 && metrics.step != 8);
      if (metrics.step == 8) {
        EXPECT_EQ(metrics.layer_settings, names);
      }
    }
  }
}

// Stopped after a choice, in the middle of gathering for the next one.
TEST_F(LayerSettingsTest, ResumedRunsEndWithTheSameBits) {
  for (const char* codec : {"qsgd3/64", "topk/0.1+ef", "powersgd/2+ef"}) {
    const std::string name = std::string(codec).substr(0, 4);
    const train::Outcome whole = train(run_of(codec, {}), 4, name + "whole");
    train(run_of(codec, {"train.steps=6", "checkpoint.every_steps=3"}), 4, name + "parts");
    const train::Outcome resumed =
        train(run_of(codec, {"checkpoint.resume=auto"}), 4, name + "parts");
    EXPECT_EQ(resumed.first_step, 6);
    EXPECT_EQ(resumed.parameter_hash, whole.parameter_hash) << codec;
    ASSERT_EQ(resumed.settings.size(), 2u);
    for (size_t nth = 0; nth < 2; ++nth) {
      EXPECT_EQ(resumed.settings[nth].step, whole.settings[nth].step);
      EXPECT_EQ(resumed.settings[nth].choice.settings, whole.settings[nth].choice.settings);
    }
    EXPECT_NE(whole.parameter_hash,
              train(run_of(codec, {"compression.adapt=none", "compression.adapt_every_steps=1000",
                                   "lgreco.start_step=1000", "lgreco.gather_steps=10"}),
                    4, name + "uniform")
                  .parameter_hash);
  }
}

// A checkpoint without sums of gradients: they begin where the run goes on.
TEST_F(LayerSettingsTest, AResumedRunMayBeginToChoose) {
  for (const char* codec : {"qsgd3/64", "powersgd/2+ef"}) {
    const std::string name = std::string("began-") + std::string(codec, 4);
    train(run_of(codec,
                 {"train.steps=7", "compression.adapt=none", "compression.adapt_every_steps=1000",
                  "lgreco.start_step=1000", "lgreco.gather_steps=10"}),
          3, name);
    const train::Outcome resumed = train(run_of(codec, {"checkpoint.resume=auto"}), 3, name);
    EXPECT_EQ(resumed.first_step, 7);
    ASSERT_EQ(resumed.settings.size(), 1u);
    EXPECT_EQ(resumed.settings[0].step, 8);
  }
}

TEST_F(LayerSettingsTest, ARankWithOtherSettingsEndsTheRun) {
  train::Hooks hooks;
  hooks.settings_received = [](int64_t rank, strategy::LayerSettings& settings) {
    if (rank == 1) settings.back() ^= 1;
  };
  try {
    train(run_of("qsgd4/64", {"train.steps=5"}), 3, "tampered", hooks);
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 holds other settings of layers"));
  }
}

// Settings of another codec are not taken up, and wrong ones name the checkpoint.
TEST_F(LayerSettingsTest, SettingsOfACheckpointAreChecked) {
  const std::vector<strategy::AdaptedLayer> layers = {
      {"a", 0, 0, 0, {codec::parse_codec("qsgd4/64"), 10}}};
  const persist::ChosenSettings chosen{7, {{2}, 100, 120, 0.5, 0.75}};
  const Json json = persist::to_json(chosen, layers);
  const persist::ChosenSettings back = persist::chosen_from_json(json, layers, "there");
  EXPECT_EQ(back.choice.settings, chosen.choice.settings);
  EXPECT_EQ(back.choice.allowed_error, 0.75);
  EXPECT_EQ(back.step, 7);
  const std::vector<strategy::AdaptedLayer> others = {
      {"a", 0, 0, 0, {codec::parse_codec("topk/0.1"), 10}}};
  for (const auto& wrong : {others, std::vector<strategy::AdaptedLayer>()}) {
    try {
      persist::chosen_from_json(json, wrong, "there");
      ADD_FAILURE();
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("there: settings of layers: "));
    }
  }
  train(run_of("qsgd4/64", {"train.steps=5"}), 2, "first");
  const train::Outcome other =
      train(run_of("topk/0.1", {"train.steps=6", "checkpoint.resume=auto"}), 2, "first");
  EXPECT_TRUE(other.settings.empty());
}

}  // namespace
}  // namespace strait
