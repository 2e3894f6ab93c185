#include "strait/draft/block_kernels.h"

#include <optional>
#include <string>
#include <utility>

#include "strait/draft/head_kernels.h"
#include "strait/draft/segment_ops.h"
#include "strait/draft/shard_kernels.h"

namespace strait::draft {

using program::AccessSet;
using program::AttributeType;
using program::Count;
using program::Kernel;
using program::KernelCost;
using program::KernelOperand;
using program::Op;
using program::Program;

namespace {

struct Entry {
  BlockOperand operand;
  AccessSet access;
  Count count = Count::kOne;
  bool whole = true;
};

/// "unet_made", "unet_made_gradient"; for the life of the program.
const char* unet_name(UnetValue value, bool gradient) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (int number = 0; number < kNumUnetTargets; ++number)
      for (const char* ending : {"", "_gradient"})
        list.push_back(std::string("unet_") + unet_value_name(static_cast<UnetValue>(number)) +
                       ending);
    return list;
  }();
  return names[static_cast<size_t>(2 * static_cast<int>(value) + (gradient ? 1 : 0))].c_str();
}

/// All operands of block kernels, of which this one has those of `entries`.
std::vector<KernelOperand> operands(const std::vector<Entry>& entries) {
  std::vector<KernelOperand> list = {
      {"tokens"},   {"sequences"},       {"step"},           {"weights"},  {"input"},  {"output"},
      {"saved"},    {"output gradient"}, {"input gradient"}, {"gradient"}, {"agreed"}, {"cache"},
      {"position"}, {"kept up"},         {"bundle"},         {"deferred"}};
  for (int value = 0; value < kNumBlockValues; ++value)
    list.push_back({value_name(static_cast<BlockValue>(value))});
  for (int value = 0; value < kNumEndValues; ++value)
    list.push_back({end_value_name(static_cast<EndValue>(value))});
  for (const bool gradient : {false, true})
    for (int value = 0; value < kNumUnetValues; ++value)
      list.push_back({unet_name(static_cast<UnetValue>(value), gradient)});
  for (KernelOperand& operand : list) operand.count = Count::kNone;
  for (const Entry& entry : entries) {
    KernelOperand& operand = list[entry.operand];
    operand.access = entry.access;
    operand.count = entry.count;
    operand.whole = entry.whole;
  }
  return list;
}

std::vector<program::AttributeInfo> block_attributes() {
  return {
      {"block", AttributeType::kIndex, true},      {"segments", AttributeType::kRange, true},
      {"batch", AttributeType::kInteger},          {"tokens", AttributeType::kInteger},
      {"training", AttributeType::kInteger},       {"flops", AttributeType::kNumber},
      {"attention flops", AttributeType::kNumber}, {"workspace", AttributeType::kInteger},
      {"library bytes", AttributeType::kInteger},  {"passed bytes", AttributeType::kNumber},
      {"activations", AttributeType::kNumber},     {"calls", AttributeType::kNumber},
      {"capacity", AttributeType::kInteger},       {"micro-batch", AttributeType::kIndex, true}};
}

bool is_floating(Dtype dtype) {
  return dtype != Dtype::kByte && dtype != Dtype::kInt32 && dtype != Dtype::kInt64;
}

/// What its products multiply: the type of weights, or where an op has none the narrowest of what
/// it reads and writes, because sums and statistics are wider. What a bundle of bytes holds is of
/// the type of activations.
Dtype type_of_products(const Program& program, const Op& op) {
  const auto type = [&](const program::Operand& operand) {
    return program.arrays[operand.array].dtype;
  };
  if (const program::Operand* weights = program::operand_in(op.reads, kWeights))
    return type(*weights);
  std::optional<Dtype> narrowest;
  const auto take = [&](Dtype one) {
    if (is_floating(one) && (!narrowest || dtype_bytes(one) < dtype_bytes(*narrowest)))
      narrowest = one;
  };
  bool bundles = false;
  for (const auto* operands : {&op.reads, &op.writes})
    for (const program::Operand& operand : *operands) {
      take(type(operand));
      bundles = bundles || operand.slot == kSaved;
    }
  if (bundles)
    for (const program::ValueArray& array : program.arrays)
      if (array.category == program::Category::kActivations) take(array.dtype);
  return narrowest.value_or(Dtype::kFloat32);
}

KernelCost block_cost(const Program& program, const Op& op, int64_t rank) {
  KernelCost cost;
  cost.flops = program::attribute<double>(op, kFlops);
  cost.attention_flops = program::attribute<double>(op, kAttentionFlops);
  cost.weights = weights_of(op);
  cost.bytes = program::touched_bytes(program, op, rank);
  cost.workspace_bytes = program::attribute<int64_t>(op, kWorkspace);
  cost.library = {
      program::attribute<int64_t>(op, kLibraryBytes), program::attribute<double>(op, kPassedBytes),
      program::attribute<double>(op, kActivations), program::attribute<double>(op, kCalls)};
  cost.dtype = type_of_products(program, op);
  return cost;
}

Kernel block_kernel(const char* name, std::vector<KernelOperand> operands) {
  return {name, program::Bound::kProducts, std::move(operands), block_attributes(), block_cost};
}

using program::kAdds;
using program::kReads;
using program::kUpdates;
using program::kWrites;

/// A unit of tied weights gets its gradient from two blocks: the second one updates it.
constexpr AccessSet kMakesGradient = kWrites | kUpdates | kAdds;

/// Those of a range of segments: `entries`, and whatever passes between ranges. Of bundles, and of
/// what may lie beside them, a range touches its part alone; what another range has put there
/// stays.
std::vector<KernelOperand> segment_operands(std::vector<Entry> entries) {
  constexpr AccessSet kAny = kReads | kWrites | kUpdates;
  for (const BlockOperand bundle : {kSaved, kKeptUp, kBundle, kDeferred})
    entries.push_back({bundle, kAny, Count::kOptional, false});
  for (int value = 0; value < kNumBlockValues; ++value)
    entries.push_back({static_cast<BlockOperand>(kBlockValues + value), kAny, Count::kOptional,
                       !product_values().test(static_cast<size_t>(value))});
  return operands(entries);
}

/// The operands of a step, and what passes between steps.
Kernel make_end_kernel(EndStep step) {
  std::vector<Entry> entries = {{kTokens, kReads}};
  const bool in_head = step >= EndStep::kMoments;
  const bool reads_input = in_head && step != EndStep::kParts && step != EndStep::kLoss;
  // Where rows are split these do not read it, nor make its gradient.
  const bool product = step == EndStep::kLogits || step == EndStep::kGradient;
  const Count of_rows = product ? Count::kOptional : Count::kOne;
  if (reads_input) entries.push_back({kInput, kReads, of_rows});
  // Without positions, embedding needs no weights; a loss alone does not either.
  if (step != EndStep::kMoments && step != EndStep::kParts) entries.push_back({kWeights, kReads});
  if (step == EndStep::kEmbed) {
    entries.push_back({kSequences, kReads});
    entries.push_back({kOutput, kWrites});
  }
  if (step == EndStep::kLoss) {
    entries.push_back({kStepValues, kReads, Count::kOptional});
    entries.push_back({kAgreed, kAdds});
  }
  if (step == EndStep::kGradient || step == EndStep::kNormGradient)
    entries.push_back({kInputGradient, kWrites, of_rows});
  if (step == EndStep::kGradient) entries.push_back({kGradient, kMakesGradient});
  for (int value = 0; value < kNumEndValues; ++value)
    entries.push_back({static_cast<BlockOperand>(kEndValues + value), kReads | kWrites | kUpdates,
                       Count::kOptional});
  return block_kernel(end_step_name(step), operands(entries));
}

Kernel make_unet_kernel(UnetValue value, bool backward) {
  const bool ends = value == UnetValue::kOutput;
  std::vector<Entry> entries = {{kTokens, kReads},
                                {kSequences, kReads, Count::kOptional},
                                {kWeights, kReads},
                                {kInput, kReads, Count::kOptional}};
  const auto add = [&](UnetValue of, bool gradient, AccessSet access, Count count) {
    entries.push_back({static_cast<BlockOperand>(unet_slot(of, gradient)), access, count});
  };
  for (int number = 0; number < kNumUnetValues; ++number) {
    const auto other = static_cast<UnetValue>(number);
    if (other != value || backward) add(other, false, kReads, Count::kOptional);
    if (other != value && backward) add(other, true, kWrites | kUpdates, Count::kOptional);
  }
  if (!ends) add(value, backward, backward ? kReads : kWrites, Count::kOne);
  if (ends) entries.push_back({kAgreed, kAdds, Count::kOptional});
  if (ends && !backward) entries.push_back({kOutput, kWrites, Count::kOptional});
  if (ends && backward) {
    entries.push_back({kStepValues, kReads, Count::kOptional});
    entries.push_back({kOutputGradient, kReads, Count::kOptional});
  }
  if (backward) entries.push_back({kInputGradient, kWrites | kUpdates, Count::kOptional});
  // Moments are made of no weights.
  if (backward && value != UnetValue::kMoments && value != UnetValue::kAttentionMoments)
    entries.push_back({kGradient, kMakesGradient});
  return block_kernel(unet_name(value, backward), operands(entries));
}

}  // namespace

const Kernel& unet_kernel(UnetValue value, bool backward) {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list;
    for (int number = 0; number < kNumUnetTargets; ++number)
      for (const bool gradient : {false, true})
        list.push_back(make_unet_kernel(static_cast<UnetValue>(number), gradient));
    return list;
  }();
  return kernels[static_cast<size_t>(2 * static_cast<int>(value) + (backward ? 1 : 0))];
}

const Kernel& end_kernel(EndStep step) {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list;
    for (int number = 0; number < kNumEndSteps; ++number)
      list.push_back(make_end_kernel(static_cast<EndStep>(number)));
    return list;
  }();
  return kernels[static_cast<size_t>(step)];
}

const Kernel kForward = block_kernel("forward", operands({{kTokens, kReads},
                                                          {kSequences, kReads},
                                                          {kWeights, kReads},
                                                          {kInput, kReads, Count::kOptional},
                                                          {kOutput, kWrites, Count::kOptional},
                                                          {kSaved, kWrites, Count::kOptional}}));

const Kernel kForwardBackward =
    block_kernel("forward_backward", operands({{kTokens, kReads},
                                               {kSequences, kReads, Count::kOptional},
                                               {kStepValues, kReads},
                                               {kWeights, kReads},
                                               {kInput, kReads},
                                               {kInputGradient, kWrites},
                                               {kGradient, kMakesGradient},
                                               {kAgreed, kAdds}}));

const Kernel kForwardLoss =
    block_kernel("forward_loss", operands({{kTokens, kReads},
                                           {kSequences, kReads, Count::kOptional},
                                           {kWeights, kReads},
                                           {kInput, kReads},
                                           {kAgreed, kAdds}}));

const Kernel kForwardCached =
    block_kernel("forward_cached", operands({{kTokens, kReads},
                                             {kPosition, kReads},
                                             {kWeights, kReads},
                                             {kInput, kReads, Count::kOptional},
                                             {kOutput, kWrites},
                                             {kCache, kUpdates, Count::kOptional}}));

const Kernel kBackward =
    block_kernel("backward", operands({{kTokens, kReads},
                                       {kSequences, kReads},
                                       {kWeights, kReads, Count::kOptional},
                                       {kInput, kReads, Count::kOptional},
                                       {kSaved, kReads, Count::kOptional},
                                       {kOutputGradient, kReads},
                                       {kInputGradient, kWrites, Count::kOptional},
                                       {kGradient, kMakesGradient}}));

const Kernel kForwardSegments =
    block_kernel("forward_segments", segment_operands({{kTokens, kReads},
                                                       {kSequences, kReads},
                                                       {kWeights, kReads, Count::kOptional},
                                                       {kInput, kReads, Count::kOptional},
                                                       {kOutput, kWrites, Count::kOptional}}));

const Kernel kBackwardInput = block_kernel(
    "backward_input",
    segment_operands({{kTokens, kReads},
                      {kSequences, kReads},
                      {kWeights, kReads, Count::kOptional},
                      {kInput, kReads, Count::kOptional},
                      {kOutputGradient, kReads, Count::kOptional},
                      {kInputGradient, kWrites | kUpdates | kReads, Count::kOptional}}));

const Kernel kBackwardWeight = block_kernel(
    "backward_weight", segment_operands({{kTokens, kReads}, {kGradient, kMakesGradient}}));

namespace {

constexpr BlockOperand operand_of(BlockValue value) {
  return static_cast<BlockOperand>(block_slot(value));
}

Kernel of_round(Kernel kernel, std::initializer_list<const char*> more = {}) {
  kernel.attributes.push_back({"round", AttributeType::kInteger});
  for (const char* name : more) kernel.attributes.push_back({name, AttributeType::kInteger});
  return kernel;
}

Kernel round_kernel(const char* name) {
  return block_kernel(name, segment_operands({{kTokens, kReads}, {kSequences, kReads}}));
}

Kernel pack_kernel(const char* name) {
  Kernel kernel =
      block_kernel(name, operands({{kTokens, kReads},
                                   {kSaved, kReads, Count::kOptional, false},
                                   {operand_of(BlockValue::kQkv), kReads, Count::kOptional},
                                   {operand_of(BlockValue::kKeys), kWrites}}));
  kernel.bound = program::Bound::kMemory;
  return kernel;
}

Kernel normalize_kernel(const char* name) {
  constexpr BlockOperand kAttention = operand_of(BlockValue::kNormedAttention);
  constexpr BlockOperand kMlp = operand_of(BlockValue::kNormedMlp);
  Kernel kernel = block_kernel(name, operands({{kTokens, kReads},
                                               {kWeights, kReads},
                                               {kInput, kReads, Count::kOptional},
                                               {kSaved, kReads, Count::kOptional, false},
                                               {kAttention, kWrites, Count::kOptional},
                                               {kMlp, kWrites, Count::kOptional}}));
  kernel.bound = program::Bound::kMemory;
  return kernel;
}

Kernel add_kernel(const char* name) {
  Kernel kernel =
      block_kernel(name, operands({{kTokens, kReads},
                                   {operand_of(BlockValue::kGatheredKeyGradient), kReads},
                                   {operand_of(BlockValue::kKeyGradient), kUpdates}}));
  kernel.bound = program::Bound::kMemory;
  return kernel;
}

}  // namespace

namespace {

/// Of what they read, rows touch their part.
Kernel of_rows(const Kernel& whole, const char* name) {
  Kernel kernel = whole;
  kernel.name = name;
  for (size_t slot = kInput; slot < kernel.operands.size(); ++slot)
    kernel.operands[slot].whole = false;
  kernel.attributes.push_back({"rows", AttributeType::kRange, true});
  return kernel;
}

}  // namespace

const Kernel kForwardRows = of_rows(kForwardSegments, "forward_rows");
const Kernel kBackwardInputRows = of_rows(kBackwardInput, "backward_input_rows");

namespace {

Kernel of_shard(Kernel kernel, const char* name) {
  kernel.name = name;
  kernel.attributes.push_back({"shard", AttributeType::kInteger, true});
  return kernel;
}

/// Of joined values those that are named.
KernelCost sum_cost(const Program& program, const Op& op, int64_t rank) {
  KernelCost cost;
  for (const auto* operands : {&op.reads, &op.writes})
    for (const program::Operand& operand : *operands)
      cost.bytes += static_cast<double>(
          program::value_bytes(program, program.arrays[static_cast<size_t>(operand.array)], rank,
                               operand.index.constant));
  return cost;
}

}  // namespace

const Kernel kForwardShard = of_shard(kForwardRows, "forward_shard");
const Kernel kBackwardInputShard = of_shard(kBackwardInputRows, "backward_input_shard");
const Kernel kSumShards = {"sum_shards",
                           program::Bound::kMemory,
                           {{"own", kReads, Count::kOne, false},
                            {"received", kReads, Count::kOne, false},
                            {"sum", kWrites}},
                           {},
                           sum_cost};

const Kernel kNormalizeAgain = normalize_kernel("normalize_again");

const Kernel kPackKeys = of_round(pack_kernel("pack_keys"), {"part", "parts"});
const Kernel kAttendRound = of_round(round_kernel("attend_round"));
const Kernel kAttendRoundInput =
    of_round(round_kernel("attend_round_input"), {"part", "parts", "pairs"});
const Kernel kAddKeyGradient = of_round(add_kernel("add_key_gradient"), {"part", "parts"});

const Kernel kPackGroup = of_round(pack_kernel("pack_group"), {"group"});
const Kernel kAttendGroup = of_round(round_kernel("attend_group"), {"group"});
const Kernel kAttendGroupInput = of_round(round_kernel("attend_group_input"), {"group", "pairs"});
const Kernel kAddGroupGradient = of_round(add_kernel("add_group_gradient"), {"group"});

const Kernel& head_kernel(HeadStep step) {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list;
    for (int number = 0; number < kNumHeadSteps; ++number) {
      const auto one = static_cast<HeadStep>(number);
      list.push_back(block_kernel(
          head_step_name(one),
          segment_operands({{kTokens, kReads}, {kSequences, kReads, Count::kOptional}})));
      if (one != HeadStep::kAttend && one != HeadStep::kAttendInput)
        list.back().bound = program::Bound::kMemory;
    }
    return list;
  }();
  return kernels[static_cast<size_t>(step)];
}

namespace {

/// A copy between moved_rows and as much of another value, and where that is left as zeros they are
/// written. Gradients of keys, wider beside bf16, count as what is sent of them.
KernelCost remap_cost(const Program& program, const Op& op, int64_t rank) {
  KernelCost cost = block_cost(program, op, rank);
  cost.bytes *= op.kernel == &remap_kernel(RemapStep::kPackMiddleGradient) ? 3 : 2;
  return cost;
}

/// Of all but moved_rows it touches a part.
Kernel moving_kernel(const char* name, const std::vector<Entry>& others) {
  std::vector<Entry> entries = {{kTokens, kReads}};
  entries.insert(entries.end(), others.begin(), others.end());
  Kernel kernel = block_kernel(name, segment_operands(entries));
  for (KernelOperand& operand : kernel.operands) operand.whole = false;
  kernel.operands[operand_of(BlockValue::kMovedRows)].whole = true;
  kernel.bound = program::Bound::kMemory;
  kernel.cost = remap_cost;
  return kernel;
}

Kernel make_remap_kernel(RemapStep step) {
  Kernel kernel =
      moving_kernel(remap_step_name(step), {{kInput, kReads | kUpdates, Count::kOptional},
                                            {kInputGradient, kReads | kUpdates, Count::kOptional}});
  kernel.attributes.push_back({"rows", AttributeType::kRange, true});
  return kernel;
}

}  // namespace

const Kernel& remap_kernel(RemapStep step) {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list;
    for (int number = 0; number < kNumRemapSteps; ++number)
      list.push_back(make_remap_kernel(static_cast<RemapStep>(number)));
    return list;
  }();
  return kernels[static_cast<size_t>(step)];
}

const Kernel& exchange_kernel(RemapStep step) {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list;
    for (const char* name :
         {"pack_qkv_heads", "place_qkv_heads", "pack_attention_heads", "place_attention_heads",
          "pack_attention_gradient_heads", "place_attention_gradient_heads",
          "pack_qkv_gradient_heads", "place_qkv_gradient_heads"})
      list.push_back(of_round(moving_kernel(name, {}), {"group"}));
    return list;
  }();
  return kernels[static_cast<size_t>(step)];
}

const Kernel kLoad = {
    "load",
    program::Bound::kNothing,
    operands({{kTokens, kWrites}, {kSequences, kWrites}, {kStepValues, kReads}, {kAgreed, kAdds}}),
    {{"micro-batch", AttributeType::kIndex, true},
     {"batch", AttributeType::kInteger},
     {"tokens", AttributeType::kInteger},
     {"counted", AttributeType::kInteger}},
    nullptr,
    true};

Op block_op(const Kernel& kernel, int64_t block, const program::IntegerRange& segments) {
  Op op;
  op.kind = program::OpKind::kKernel;
  op.kernel = &kernel;
  op.attributes = {program::Index{block}, segments,    int64_t{0}, int64_t{0},        int64_t{0},
                   double{0.0},           double{0.0}, int64_t{0}, int64_t{0},        double{0.0},
                   double{0.0},           double{0.0}, int64_t{0}, program::Index{-1}};
  return op;
}

void set_flops(Op& op, double flops, double attention_flops) {
  op.attributes[kFlops] = flops;
  op.attributes[kAttentionFlops] = attention_flops;
}

void set_library(Op& op, const LibraryWork& work) {
  op.attributes[kLibraryBytes] = work.bytes;
  op.attributes[kPassedBytes] = work.passed_bytes;
  op.attributes[kActivations] = work.activations;
  op.attributes[kCalls] = work.calls;
}

void scale_flops(Op& op, double part) {
  set_flops(op, part * program::attribute<double>(op, kFlops),
            part * program::attribute<double>(op, kAttentionFlops));
}

double weights_of(const Op& op) {
  int64_t rows = program::attribute<int64_t>(op, kBatch) * program::attribute<int64_t>(op, kLength);
  if (works_on_rows(op)) rows = rows_of(op).end - rows_of(op).begin;
  const double products =
      program::attribute<double>(op, kFlops) - program::attribute<double>(op, kAttentionFlops);
  return rows > 0 ? products / (2 * static_cast<double>(rows)) : 0.0;
}

void add_operand(Op& op, int array, const program::Index& index, program::Access access, int slot) {
  (access == program::Access::kRead ? op.reads : op.writes).push_back({array, index, access, slot});
}

}  // namespace strait::draft
