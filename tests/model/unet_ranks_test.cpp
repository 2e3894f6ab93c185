// Ranks of a grid that share a block of a U-Net make what one rank makes: what leaves the block,
// the gradient of what enters it, those of its weights, and the loss. The ranks are played by one
// thread, which adds up what shape/unet_parts.h says.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "strait/base/random.h"
#include "strait/model/unet_blocks.h"
#include "strait/shape/boxes.h"
#include "strait/shape/split.h"

namespace strait {
namespace {

using model::Call;
using model::UnetBuffers;

constexpr int64_t kBatch = 3;

struct Grid {
  int64_t x, y;
};

template <class T>
constexpr Dtype kType = sizeof(T) == 8 ? Dtype::kFloat64 : Dtype::kFloat32;

/// Numbers that depend on their names alone.
template <class T>
std::vector<T> numbers(const std::string& name, int64_t count) {
  const RandomStream stream(3, name);
  std::vector<T> list;
  for (int64_t i = 0; i < count; ++i)
    list.push_back(static_cast<T>(
        static_cast<double>(stream.below(static_cast<uint64_t>(i), 2001)) / 1000.0 - 1.0));
  return list;
}

template <class T>
double relative(const std::vector<T>& got, const std::vector<T>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double(got.at(i)) - double(want[i]), 2);
    norm += std::pow(double(want[i]), 2);
  }
  return got.size() == want.size() && norm > 0 ? std::sqrt(difference / norm)
                                               : std::numeric_limits<double>::infinity();
}

/// What enters or leaves a block: maps, and perhaps the embedding of the step.
struct Border {
  std::vector<UnetMap> maps;
  int64_t time = 0;
  int64_t elements() const {
    int64_t sum = time;
    for (const UnetMap& map : maps) sum += map.elements();
    return sum;
  }
  /// Of each image, where this rank's numbers stand.
  std::vector<int64_t> places(int64_t y, int64_t place) const {
    std::vector<int64_t> list;
    int64_t begin = 0;
    const auto add = [&](int64_t elements) {
      for (int64_t i = elements / y * place; i < elements / y * (place + 1); ++i)
        list.push_back(begin + i);
      begin += elements;
    };
    for (const UnetMap& map : maps) add(map.elements());
    add(time);
    return list;
  }
};

template <class T>
class Ranks {
 public:
  Ranks(const UnetOptions& options, Grid grid) : grid_(grid) {
    ModelOptions model;
    model.family = kUnetFamily;
    model.unet = options;
    model.modules = unet_chain(options);
    whole_ = modules_shape(model, kPixelLevels);
    local_ = local_shape(whole_, grid.x, grid.y);
    settings_.dtype = kType<T>;
    settings_.loss_scale = 0.25;
    const int64_t pixels = options.colors * options.image * options.image;
    for (const double level : numbers<double>("pixels", kBatch * pixels))
      tokens_.push_back(static_cast<int32_t>(127.5 * (level + 1.0)));
    batch_.batch = kBatch;
    batch_.tokens = pixels;
    batch_.inputs = batch_.targets = tokens_.data();
    batch_.sequences = sequences_.data();
  }

  int64_t blocks() const { return std::ssize(whole_.blocks); }

  void expect_equal(int64_t block, double tolerance) {
    at_ = static_cast<size_t>(block);
    const Unet& unet = *whole_.modules->unet;
    const UnetBlock& u = unet.blocks[at_];
    first_ = u.step == UnetStep::kEnter;
    last_ = u.step == UnetStep::kLeave;
    entering_ = {u.entering, u.takes_time ? unet.time_width() : 0};
    leaving_ = {u.leaving, u.leaves_time ? unet.time_width() : 0};
    weights_ = numbers<T>(whole_.blocks[at_].name, unit(whole_).elements);
    for (T& weight : weights_) weight *= T(0.3);
    input_ = numbers<T>("input", kBatch * entering_.elements());
    output_gradient_ = numbers<T>("gradient", kBatch * leaving_.elements());
    one_rank();
    all_ranks();
    if (last_) {
      EXPECT_NEAR(together_.loss, one_.loss, tolerance * one_.loss);
    } else {
      EXPECT_LT(relative(together_.output, one_.output), tolerance);
    }
    if (!first_) {
      EXPECT_LT(relative(together_.input_gradient, one_.input_gradient), tolerance);
    }
    for (const ParameterShape& parameter : unit(whole_).parameters) {
      const auto of = [&](const std::vector<T>& gradient) {
        const auto begin = gradient.begin() + parameter.offset;
        return std::vector<T>(begin, begin + parameter.elements());
      };
      EXPECT_LT(relative(of(together_.gradient), of(one_.gradient)),
                shifts_channels(parameter.name) ? 4 * tolerance : tolerance)
          << parameter.name;
    }
  }

 private:
  struct Results {
    std::vector<T> output, input_gradient, gradient;
    double loss = 0;
  };
  struct Rank {
    Call call;
    std::vector<T> weights, input, output, output_gradient, input_gradient, gradient;
    std::array<std::vector<double>, kNumUnetValues> wide_values, wide_gradients;
    std::array<std::vector<T>, kNumUnetValues> values, gradients;
    double loss = 0;
  };

  /// What adds one number to a whole map in front of a norm, which takes the mean of its two
  /// channels away: most terms of its gradient cancel, what is rounded of them does not.
  static bool shifts_channels(const std::string& name) {
    return name.find(".conv1.bias") != std::string::npos ||
           name.find(".time.") != std::string::npos;
  }
  const UnitShape& unit(const ModelShape& shape) const {
    return shape.units[static_cast<size_t>(shape.blocks[at_].unit)];
  }
  Call call_of(Rank& rank) {
    Call call;
    call.settings = &settings_;
    call.batch = &batch_;
    call.weights = rank.weights.data();
    call.gradient = rank.gradient.data();
    if (!first_) call.input = rank.input.data();
    if (!first_) call.input_gradient = rank.input_gradient.data();
    if (!last_) call.output = rank.output.data();
    if (!last_) call.output_gradient = rank.output_gradient.data();
    call.loss_sum = &rank.loss;
    return call;
  }

  void run_whole(const model::Block& block, Rank& rank) {
    const Call call = call_of(rank);
    if (last_) {
      block.forward_backward(call);
    } else {
      block.forward(call, 0, 1);
      block.backward(call);
    }
  }

  void one_rank() {
    Rank rank;
    rank.weights = weights_;
    rank.input = input_;
    rank.output_gradient = output_gradient_;
    rank.output.resize(output_gradient_.size());
    rank.input_gradient.resize(input_.size());
    rank.gradient.resize(weights_.size());
    const auto block = model::make_unet_block(whole_, static_cast<int64_t>(at_), settings_.dtype);
    run_whole(*block, rank);
    one_ = {rank.output, rank.input_gradient, rank.gradient, rank.loss};
  }

  std::vector<T> part(const std::vector<T>& whole, const Border& border, int64_t place) const {
    std::vector<T> list;
    for (int64_t image = 0; image < kBatch; ++image)
      for (const int64_t at : border.places(grid_.y, place))
        list.push_back(whole[static_cast<size_t>(image * border.elements() + at)]);
    return list;
  }
  void join(const std::vector<T>& part, const Border& border, int64_t place,
            std::vector<T>& whole) const {
    size_t from = 0;
    for (int64_t image = 0; image < kBatch; ++image)
      for (const int64_t at : border.places(grid_.y, place))
        whole[static_cast<size_t>(image * border.elements() + at)] = part[from++];
  }
  ElementRuns runs(int64_t x, int64_t y) const {
    const LocalUnit local = localize(unit(whole_), grid_.x, grid_.y);
    ElementRuns runs;
    for (const ParameterShape& parameter : local.logical)
      append(runs, parameter_runs(parameter, {grid_.x, x}, {grid_.y, y}));
    return runs;
  }

  void all_ranks() {
    const auto block = model::make_unet_block(local_, static_cast<int64_t>(at_), settings_.dtype);
    ranks_.clear();
    for (int64_t number = 0; number < grid_.x * grid_.y; ++number) {
      Rank& rank = ranks_.emplace_back();
      const int64_t y = number / grid_.x;
      for_each_run(runs(number % grid_.x, y), [&](int64_t whole, int64_t, int64_t length) {
        const auto begin = weights_.begin() + whole;
        rank.weights.insert(rank.weights.end(), begin, begin + length);
      });
      rank.input = part(input_, entering_, y);
      rank.output_gradient = part(output_gradient_, leaving_, y);
      rank.output.resize(rank.output_gradient.size());
      rank.input_gradient.resize(rank.input.size());
      rank.gradient.resize(rank.weights.size());
    }
    const auto* shared = dynamic_cast<const model::SharedUnetBlock*>(block.get());
    if (shared) {
      const UnetParts parts(whole_.modules->unet, static_cast<int64_t>(at_), grid_.x, grid_.y);
      std::vector<UnetOp> ops = parts.forward();
      if (last_) ops.pop_back();
      UnetValueSet begun;
      for (const UnetOp& op : ops) run(*shared, parts, op, begun);
      for (const UnetOp& op : parts.backward()) run(*shared, parts, op, begun);
    } else {
      // The ends of a chain that x alone shares are whole on every rank.
      ASSERT_EQ(grid_.y, 1);
      ASSERT_TRUE(first_ || last_);
      for (Rank& rank : ranks_) run_whole(*block, rank);
    }
    collect();
  }

  static bool is_moments(UnetValue value) {
    return value == UnetValue::kMoments || value == UnetValue::kAttentionMoments;
  }
  void* buffer(Rank& rank, UnetValue value, bool gradient, int64_t elements) {
    const auto at = static_cast<size_t>(value);
    const auto size = static_cast<size_t>(kBatch * elements);
    if (is_moments(value)) {
      auto& numbers = (gradient ? rank.wide_gradients : rank.wide_values)[at];
      numbers.resize(size);
      return numbers.data();
    }
    auto& numbers = (gradient ? rank.gradients : rank.values)[at];
    numbers.resize(size);
    return numbers.data();
  }

  void run(const model::SharedUnetBlock& block, const UnetParts& parts, const UnetOp& op,
           UnetValueSet& begun) {
    for (size_t number = 0; number < ranks_.size(); ++number) {
      Rank& rank = ranks_[number];
      Call call = call_of(rank);
      const auto n = static_cast<int64_t>(number);
      call.part = {n % grid_.x, n / grid_.x};
      UnetBuffers buffers;
      const auto give = [&](UnetValue value, bool gradient, bool adds) {
        auto& list = gradient ? buffers.gradients : buffers.values;
        list[static_cast<size_t>(value)] = {buffer(rank, value, gradient, parts.elements(value)),
                                            adds};
      };
      for (int value = 0; value < kNumUnetValues; ++value) {
        const auto other = static_cast<UnetValue>(value);
        const auto at = static_cast<size_t>(value);
        if (op.reads[at] || (other == op.value && !op.backward)) give(other, false, false);
        if (op.gradients[at] || (other == op.value && op.backward)) give(other, true, begun[at]);
      }
      const auto input = static_cast<size_t>(UnetValue::kInput);
      if (!op.reads[input]) call.input = nullptr;
      buffers.adds_input = begun[input];
      block.run(op.value, op.backward, call, buffers);
    }
    if (op.backward) {
      begun |= op.gradients;
      for (int value = 0; value < kNumUnetValues; ++value)
        if (op.gradients[static_cast<size_t>(value)])
          add_up(static_cast<UnetValue>(value), true,
                 unet_gradient_axis(static_cast<UnetValue>(value)));
    } else if (op.value != UnetValue::kOutput) {
      add_up(op.value, false, unet_sum_axis(op.value));
    }
  }

  void add_up(UnetValue value, bool gradient, GridAxis axis) {
    if (axis == GridAxis::kNone) return;
    const auto at = static_cast<size_t>(value);
    const auto sum = [&](auto&& of) {
      const auto count = static_cast<int64_t>(ranks_.size());
      auto sums = std::vector<std::decay_t<decltype(of(ranks_[0]))>>();
      for (int64_t rank = 0; rank < count; ++rank) {
        auto& total = sums.emplace_back(of(ranks_[0]).size());
        for (int64_t other = 0; other < count; ++other) {
          const bool same = axis == GridAxis::kX ? rank / grid_.x == other / grid_.x
                                                 : rank % grid_.x == other % grid_.x;
          const auto& numbers = of(ranks_[static_cast<size_t>(other)]);
          for (size_t i = 0; same && i < total.size(); ++i) total[i] += numbers[i];
        }
      }
      for (int64_t rank = 0; rank < count; ++rank)
        of(ranks_[static_cast<size_t>(rank)]) = sums[static_cast<size_t>(rank)];
    };
    if (is_moments(value))
      return sum([&](Rank& rank) -> std::vector<double>& {
        return (gradient ? rank.wide_gradients : rank.wide_values)[at];
      });
    sum([&](Rank& rank) -> std::vector<T>& {
      return (gradient ? rank.gradients : rank.values)[at];
    });
  }

  /// Each rank has its part; of what several have all have the same.
  void collect() {
    together_ = {std::vector<T>(output_gradient_.size()), std::vector<T>(input_.size()),
                 std::vector<T>(weights_.size()), ranks_[0].loss};
    for (size_t number = 0; number < ranks_.size(); ++number) {
      Rank& rank = ranks_[number];
      const auto n = static_cast<int64_t>(number);
      join(rank.output, leaving_, n / grid_.x, together_.output);
      join(rank.input_gradient, entering_, n / grid_.x, together_.input_gradient);
      EXPECT_EQ(rank.loss, together_.loss);
      for_each_run(runs(n % grid_.x, n / grid_.x),
                   [&](int64_t whole, int64_t local, int64_t length) {
                     for (int64_t i = 0; i < length; ++i) {
                       T& target = together_.gradient[static_cast<size_t>(whole + i)];
                       const T made = rank.gradient[static_cast<size_t>(local + i)];
                       if (target != 0) {
                         EXPECT_EQ(made, target) << "ranks differ";
                       }
                       target = made;
                     }
                   });
    }
  }

  Grid grid_;
  ModelShape whole_, local_;
  model::Settings settings_;
  model::Batch batch_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> sequences_ = {5, 2, 9};
  size_t at_ = 0;
  bool first_ = false, last_ = false;
  Border entering_, leaving_;
  std::vector<T> weights_, input_, output_gradient_;
  Results one_, together_;
  std::vector<Rank> ranks_;
};

UnetOptions small_unet() {
  UnetOptions options;
  options.channels = {16, 32};
  options.image = 4;
  options.attention_from = 2;
  options.residual_blocks = 1;
  options.colors = 2;
  return options;
}

constexpr Grid kGrids[] = {{2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}, {4, 2}, {2, 4}, {8, 1}, {1, 8}};

template <class T>
void expect_all_grids(const UnetOptions& options, double tolerance) {
  for (const Grid& grid : kGrids) {
    Ranks<T> ranks(options, grid);
    for (int64_t block = 0; block < ranks.blocks(); ++block) {
      SCOPED_TRACE(fmt::format("x {} y {} block {}", grid.x, grid.y, block));
      ranks.expect_equal(block, tolerance);
    }
  }
}

TEST(UnetRanks, EqualOneRankInFp64) { expect_all_grids<double>(small_unet(), 1e-12); }

TEST(UnetRanks, EqualOneRankInFp32) { expect_all_grids<float>(small_unet(), 1e-6); }

/// Groups of norms of joined maps straddle both maps, and ranks.
TEST(UnetRanks, GroupsThatStraddleRanksEqualOneRank) {
  UnetOptions options = small_unet();
  options.channels = {64, 128};  // 192 channels in 32 groups of 6
  options.attention_from = 4;
  for (const Grid& grid : {Grid{1, 4}, Grid{2, 4}}) {
    Ranks<double> ranks(options, grid);
    for (int64_t block = 0; block < ranks.blocks(); ++block) {
      SCOPED_TRACE(fmt::format("x {} y {} block {}", grid.x, grid.y, block));
      ranks.expect_equal(block, 1e-12);
    }
  }
}

}  // namespace
}  // namespace strait
