#include "strait/shape/unet_parts.h"

#include <initializer_list>
#include <utility>

#include "strait/base/errors.h"
#include "strait/shape/unet.h"

namespace strait {
namespace {

using enum UnetValue;

struct Form {
  const char* name;
  GridAxis sum = GridAxis::kNone, gradient_sum = GridAxis::kNone;
  /// Ranks of these axes share its operations.
  bool by_x = false, by_y = false;
};

constexpr GridAxis kNobody = GridAxis::kNone;

constexpr Form kForms[kNumUnetTargets + 1] = {
    {"moments", GridAxis::kY, GridAxis::kY},
    {"normed", kNobody, GridAxis::kX},
    {"made", GridAxis::kY, kNobody, true, true},
    {"shortcut", GridAxis::kY, GridAxis::kY, false, true},
    {"activated", kNobody, GridAxis::kY},
    {"branch", GridAxis::kX, kNobody, true, true},
    {"features"},
    {"attention_moments", GridAxis::kY, GridAxis::kY},
    {"qkv", GridAxis::kY, kNobody, false, true},
    {"mixed", kNobody, GridAxis::kY},
    {"attended", kNobody, kNobody, false, true},
    {"resampled", GridAxis::kY, GridAxis::kY, false, true},
    {"hidden", kNobody, GridAxis::kY},
    {"predicted", GridAxis::kY, kNobody, false, true},
    {"output", kNobody, kNobody, false, true},
    {"input"}};

const Form& form(UnetValue value) { return kForms[static_cast<size_t>(value)]; }

UnetValue value_at(int number) { return static_cast<UnetValue>(number); }

}  // namespace

const char* unet_value_name(UnetValue value) { return form(value).name; }
GridAxis unet_sum_axis(UnetValue value) { return form(value).sum; }
GridAxis unet_gradient_axis(UnetValue value) { return form(value).gradient_sum; }

UnetParts::UnetParts(std::shared_ptr<const Unet> unet, int64_t block, int64_t x, int64_t y)
    : unet_(std::move(unet)), block_(block), x_(x), y_(y) {
  const bool sums_moments = y > 1;
  switch (unet_->blocks.at(static_cast<size_t>(block)).step) {
    case UnetStep::kEnter:
      add(kHidden, {kInput});
      add(kOutput, {kInput, kHidden});
      break;
    case UnetStep::kLeave:
      if (sums_moments) add(kMoments, {kInput});
      add(kPredicted, {kInput});
      if (sums_moments) sources_[index(kPredicted)].set(index(kMoments));
      add(kOutput, {kPredicted});
      break;
    default:
      add_residual();
  }
  find_cuts();
}

void UnetParts::add(UnetValue value, std::initializer_list<UnetValue> sources) {
  made_.set(index(value));
  for (const UnetValue source : sources) sources_[index(value)].set(index(source));
}

void UnetParts::add_residual() {
  const UnetBlock& block = unet_->blocks[static_cast<size_t>(block_)];
  const bool has_shortcut = unet_->residual_input(block_).channels != block.channels;
  add(kNormed, {kInput});
  add(kMade, {kNormed});
  if (has_shortcut) add(kShortcut, {kInput});
  add(kActivated, {kMade});
  add(kBranch, {kActivated});
  add(kFeatures, {kBranch, has_shortcut ? kShortcut : kInput});
  UnetValue last = kFeatures;
  if (block.attention) {
    add(kQkv, {kFeatures});
    add(kMixed, {kQkv});
    add(kAttended, {kFeatures, kMixed});
    last = kAttended;
  }
  if (y_ > 1) {
    add(kMoments, {kInput});
    sources_[index(kNormed)].set(index(kMoments));
    if (block.attention) {
      add(kAttentionMoments, {kFeatures});
      sources_[index(kQkv)].set(index(kAttentionMoments));
    }
  }
  if (block.resamples) add(kResampled, {last});
  const bool passes = !block.resamples || block.step == UnetStep::kDown;
  add(kOutput, {kInput});
  if (passes) sources_[index(kOutput)].set(index(last));
  if (block.resamples) sources_[index(kOutput)].set(index(kResampled));
}

/// From the last value to the first, so that those that need one are known before it.
void UnetParts::find_cuts() {
  std::array<UnetValueSet, kNumUnetTargets + 1> readers;
  for (int number = kNumUnetTargets - 1; number >= 0; --number) {
    const auto at = static_cast<size_t>(number);
    if (!made_[at]) continue;
    const UnetValue value = value_at(number);
    const bool sums = size(unet_sum_axis(value)) > 1 || size(unet_gradient_axis(value)) > 1;
    if (value == kOutput || sums || readers[at].count() > 1) cut_.set(at);
    UnetValueSet reader = readers[at];
    if (cut_[at]) {
      ensure(size(unet_gradient_axis(value)) == 1 || readers[at].count() == 1,
             "a gradient that is summed over ranks is made by one op");
      reader.reset();
      reader.set(at);
    }
    for (size_t source = 0; source < at; ++source)
      if (sources_[at][source]) readers[source] |= reader;
  }
}

int64_t UnetParts::size(GridAxis axis) const {
  return axis == GridAxis::kX ? x_ : axis == GridAxis::kY ? y_ : 1;
}

bool UnetParts::is_shared() const { return cut_.count() > 1; }

bool UnetParts::is_kept(UnetValue value) const {
  return made_[index(value)] && size(unet_sum_axis(value)) > 1;
}

UnetValueSet UnetParts::leaves(UnetValue value) const {
  UnetValueSet found;
  for (int number = 0; number <= kNumUnetTargets; ++number) {
    const UnetValue source = value_at(number);
    if (!sources(value)[index(source)]) continue;
    if (source == kInput || is_cut(source)) {
      found.set(index(source));
    } else {
      found |= leaves(source);
    }
  }
  return found;
}

UnetValueSet UnetParts::inlined(UnetValue value) const {
  UnetValueSet found;
  found.set(index(value));
  for (int number = 0; number < kNumUnetTargets; ++number)
    if (sources(value)[static_cast<size_t>(number)] && !is_cut(value_at(number)))
      found |= inlined(value_at(number));
  return found;
}

UnetValueSet UnetParts::needs(UnetValue value, double& flops_of_it) const {
  UnetValueSet found;
  flops_of_it += flops(value);
  for (int number = 0; number <= kNumUnetTargets; ++number) {
    const UnetValue source = value_at(number);
    if (!sources(value)[index(source)]) continue;
    if (source == kInput || is_kept(source)) {
      found.set(index(source));
    } else {
      found |= needs(source, flops_of_it);
    }
  }
  return found;
}

std::vector<UnetOp> UnetParts::forward() const {
  std::vector<UnetOp> ops;
  for (int number = 0; number < kNumUnetTargets; ++number) {
    const UnetValue value = value_at(number);
    if (!is_kept(value) && value != kOutput) continue;
    UnetOp op{value, false, {}, {}, 0};
    op.reads = needs(value, op.flops);
    ops.push_back(op);
  }
  return ops;
}

std::vector<UnetOp> UnetParts::backward() const {
  const bool has_input_gradient =
      unet_->blocks[static_cast<size_t>(block_)].step != UnetStep::kEnter;
  std::vector<UnetOp> ops;
  for (int number = kNumUnetTargets - 1; number >= 0; --number) {
    const UnetValue value = value_at(number);
    if (!made_[index(value)] || !is_cut(value)) continue;
    UnetOp op{value, true, {}, leaves(value), 0};
    const UnetValueSet within = inlined(value);
    for (int inside = 0; inside < kNumUnetTargets; ++inside)
      if (within[static_cast<size_t>(inside)]) op.flops += 3 * flops(value_at(inside));
    for (int leaf = 0; leaf <= kNumUnetTargets; ++leaf) {
      const UnetValue source = value_at(leaf);
      if (!op.gradients[index(source)]) continue;
      if (source == kInput || is_kept(source)) {
        op.reads.set(index(source));
      } else {
        op.reads |= needs(source, op.flops);
      }
    }
    if (!has_input_gradient) op.gradients.reset(index(kInput));
    ops.push_back(op);
  }
  return ops;
}

int64_t UnetParts::elements(UnetValue value) const {
  const UnetBlock& block = unet_->blocks[static_cast<size_t>(block_)];
  const bool leaves = block.step == UnetStep::kLeave;
  if (value == kHidden) return unet_->time_width();
  if (value == kPredicted) return unet_->image().elements();
  const UnetMap entering = leaves ? block.entering.back() : unet_->residual_input(block_);
  if (value == kMoments) return 2 * unet_groups(entering.channels);
  const UnetMap map = unet_->branch(block_);
  switch (value) {
    case kNormed:
      return (entering.elements() + unet_->time_width()) / y_;
    case kMade:
    case kActivated:
      return map.elements() / x_;
    case kBranch:
    case kFeatures:
    case kAttended:
      return map.elements() / y_;
    case kShortcut:
    case kMixed:
      return map.elements();
    case kAttentionMoments:
      return 2 * unet_groups(map.channels);
    case kQkv:
      return 3 * map.elements();
    case kResampled: {
      const int64_t height = block.leaving.back().height;
      return map.channels * height * height;
    }
    default:
      throw InternalError("a value that does not pass inside a block has no size here");
  }
}

double UnetParts::flops(UnetValue value) const {
  const double whole = unet_->blocks[static_cast<size_t>(block_)].flops[index(value)];
  return whole / static_cast<double>((form(value).by_x ? x_ : 1) * (form(value).by_y ? y_ : 1));
}

double UnetParts::forward_flops() const {
  double sum = 0;
  for (int number = 0; number < kNumUnetTargets; ++number) sum += flops(value_at(number));
  return sum;
}

Dtype UnetParts::kept_dtype(UnetValue value, Dtype dtype) {
  if (value == kMoments || value == kAttentionMoments) return Dtype::kFloat64;
  return dtype == Dtype::kBfloat16 ? Dtype::kFloat32 : dtype;
}

Dtype UnetParts::gradient_dtype(UnetValue value, Dtype dtype) {
  return value == kMoments || value == kAttentionMoments ? Dtype::kFloat64 : dtype;
}

}  // namespace strait
