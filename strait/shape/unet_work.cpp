#include "strait/shape/unet_work.h"

#include <algorithm>
#include <array>
#include <optional>

#include "strait/base/errors.h"
#include "strait/shape/library_tape.h"
#include "strait/shape/unet.h"

namespace strait {
namespace {

using enum UnetValue;
using Tensor = LibraryTape::Tensor;
using enum LibraryTape::Gradient;
using Known = std::array<std::optional<Tensor>, kNumUnetTargets + 1>;

constexpr int64_t kWide = 8;            // bytes of what noise and moments are made in
constexpr int64_t kFewNumbers = 20480;  // of one image: LibTorch unfolds it
/// What a convolution of hardly any numbers takes of a call: layouts there and back, and looking up
/// its kernels: 60 us where SiLU of one number took 4.
constexpr int64_t kCallsOfLayouts = 14;

/// That LibTorch takes for multiplying bf16, and in whose registers oneDNN has 16 channels.
bool has_avx512() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return has;
#else
  return false;
#endif
}
/// Channels of a block in oneDNN's layouts on this processor.
int64_t channel_block() { return has_avx512() ? 16 : 8; }
/// Other types LibTorch unfolds and multiplies as matrices.
bool is_for_onednn(Dtype dtype) {
  return dtype == Dtype::kFloat32 || (dtype == Dtype::kBfloat16 && has_avx512());
}

class Work {
 public:
  Work(const UnetParts& parts, int64_t batch, Dtype dtype)
      : parts_(parts),
        block_(parts.unet().blocks[static_cast<size_t>(parts.block())]),
        batch_(batch),
        dtype_(dtype) {}

  const LibraryWork& forward(const UnetOp& op) {
    Known known = given(op);
    if (is_loss(op))
      losses(known);
    else
      make(op.value, known);
    return tape_.work();
  }

  const LibraryWork& backward(const UnetOp& op) {
    Known made = given(op), known;
    const UnetValueSet leaves = parts_.leaves(op.value);
    for (size_t number = 0; number < leaves.size(); ++number) {
      if (!leaves[number]) continue;
      known[number] = make(static_cast<UnetValue>(number), made);
      if (number != index(kInput) || block_.step != UnetStep::kEnter)
        known[number] = tape_.leaf(*known[number]);
    }
    tape_.record(true);
    const Tensor result = is_loss(op) ? losses(known) : make(op.value, known);
    tape_.record(false);
    // Of a block that is one piece the values end with its function.
    if (!parts_.is_shared()) known = made = {};
    tape_.backward(result);
    return tape_.work();
  }

 private:
  static size_t index(UnetValue value) { return static_cast<size_t>(value); }
  bool is_loss(const UnetOp& op) const {
    return op.value == kOutput && block_.step == UnetStep::kLeave;
  }
  int64_t bytes(int64_t numbers, Dtype dtype) const {
    return batch_ * numbers * dtype_bytes(dtype);
  }
  int64_t bytes(int64_t numbers) const { return bytes(numbers, dtype_); }
  double numbers(const Tensor& maps) const {
    return static_cast<double>(maps.bytes() / dtype_bytes(dtype_));
  }
  Dtype wide() const { return dtype_ == Dtype::kBfloat16 ? Dtype::kFloat32 : dtype_; }
  int64_t x() const { return parts_.x(); }
  int64_t y() const { return parts_.y(); }
  UnetMap own(UnetMap map) const { return {map.channels / y(), map.height}; }
  UnetMap branch() const { return parts_.unet().branch(parts_.block()); }
  int64_t time_width() const { return parts_.unet().time_width(); }
  int64_t entering_elements(size_t count) const {
    int64_t elements = 0;
    for (size_t at = 0; at < count; ++at) elements += block_.entering[at].elements();
    return elements / y();
  }

  Known given(const UnetOp& op) {
    Known known;
    for (int number = 0; number < kNumUnetValues; ++number) {
      const auto value = static_cast<UnetValue>(number);
      if (op.reads[index(value)])
        known[index(value)] =
            tape_.tensor(bytes(parts_.elements(value), UnetParts::kept_dtype(value, dtype_)));
    }
    known[index(kInput)] = block_.step == UnetStep::kEnter ? noisy_images() : input();
    return known;
  }
  Tensor input() {
    const int64_t time = block_.takes_time ? time_width() / y() : 0;
    return tape_.tensor(bytes(entering_elements(block_.entering.size()) + time));
  }
  /// Levels, images, both parts of the sum with the noise, the sum and what it is joined to.
  Tensor noisy_images() {
    const int64_t image = parts_.unet().image().elements();
    tape_.take(7 * kWide * batch_ * image);
    const int64_t enters = image + parts_.unet().options.channels.front();
    const Tensor joined = tape_.tensor(kWide * batch_ * enters, true);
    return tape_.tensor(bytes(enters), true);
  }

  Tensor losses(Known& known) {
    const int64_t image = parts_.unet().image().elements();
    std::optional<Tensor> counted;
    if (!parts_.is_shared()) {
      targets_ = tape_.tensor(batch_ * image * dtype_bytes(Dtype::kInt64), true);
      counted = tape_.tensor(targets_->bytes(), true);
    }
    const Tensor predicted = make(kPredicted, known);
    tape_.take(kWide * batch_ * image);
    const Tensor noise = tape_.tensor(bytes(image, wide()), true);
    const Tensor errors = squares(biased(predicted), noise.bytes());
    const Tensor mask = tape_.tensor(batch_ * image, true);
    return tape_.run({.bytes = noise.bytes(), .inputs = {errors}, .saved = {mask}});
  }
  Tensor squares(const Tensor& predicted, int64_t size) {
    const Tensor difference = tape_.run({size, {cast(predicted, size)}, {kPassed}});
    return tape_.run({.bytes = size,
                      .inputs = {difference},
                      .saved = {difference},
                      .backward_scratch = 2 * size});
  }

  Tensor make(UnetValue value, Known& known) {
    if (known[index(value)]) return *known[index(value)];
    const UnetValueSet sources = parts_.sources(value);
    for (size_t source = 0; source < sources.size(); ++source)
      if (sources[source]) make(static_cast<UnetValue>(source), known);
    known_ = &known;
    known[index(value)] = made(value);
    return *known[index(value)];
  }
  const Tensor& known(UnetValue value) const { return *(*known_)[index(value)]; }

  Tensor made(UnetValue value) {
    switch (value) {
      case kMoments:
        return moments(taken());
      case kNormed: {
        const Tensor maps = silu(group_norm(taken()));
        return join({maps, silu(slice(known(kInput), bytes(time_width() / y())))});
      }
      case kMade:
        return first_convolution();
      case kShortcut:
        return convolution(taken(), own(residual_input()), branch(), 1);
      case kActivated: {
        const Tensor maps = cast(biased(biased(known(kMade))), bytes(parts_.elements(kMade)));
        return silu(whole_norm(maps));
      }
      case kBranch:
        return convolution(known(kActivated), {branch().channels / x(), branch().height},
                           own(branch()));
      case kFeatures:
        return features();
      case kAttentionMoments:
        return moments(known(kFeatures));
      case kQkv:
        return convolution(group_norm(known(kFeatures)), own(branch()),
                           {3 * branch().channels, branch().height}, 1);
      case kMixed:
        return attend(cast(biased(known(kQkv)), bytes(parts_.elements(kQkv))));
      case kAttended:
        return sum(known(kFeatures), convolution(known(kMixed), branch(), own(branch()), 1));
      case kResampled:
        return resampled();
      case kHidden: {
        const int64_t channels = parts_.unet().options.channels.front();
        return silu(linear(slice(known(kInput), bytes(channels)), channels, time_width()));
      }
      case kPredicted:
        return convolution(silu(group_norm(taken())), own(block_.entering.back()),
                           parts_.unet().image());
      case kOutput:
        return block_.step == UnetStep::kEnter ? enter() : output();
      case kInput:
        break;
    }
    throw InternalError("nothing makes what enters a block of a U-Net");
  }

  UnetMap residual_input() const {
    return block_.step == UnetStep::kLeave ? block_.entering.back()
                                           : parts_.unet().residual_input(parts_.block());
  }
  Tensor entering(size_t from_last) {
    const UnetMap map = own(block_.entering[block_.entering.size() - 1 - from_last]);
    return slice(known(kInput), bytes(map.elements()));
  }
  Tensor taken() {
    return block_.step == UnetStep::kUp ? join({entering(0), entering(1)}) : entering(0);
  }
  Tensor first_convolution() {
    const int64_t maps = bytes(residual_input().elements() / y());
    const UnetMap out = {branch().channels / x(), branch().height};
    const Tensor normed = slice(known(kNormed), maps),
                 time = slice(known(kNormed), bytes(time_width() / y()));
    const Tensor made = convolution(normed, own(residual_input()), out);
    return tape_.run(
        {made.bytes(), {made, linear(time, time_width() / y(), out.channels)}, {kPassed, kSmall}});
  }
  Tensor features() {
    const int64_t size = bytes(own(branch()).elements());
    const Tensor narrow = cast(known(kBranch), size);
    const Tensor made = tape_.run({size, {narrow}, {kPassed}});
    if (!parts_.sources(kFeatures)[index(kShortcut)]) return sum(made, taken());
    return sum(made, cast(biased(own_channels(known(kShortcut))), size));
  }
  const Tensor& last() const { return known(block_.attention ? kAttended : kFeatures); }
  Tensor resampled() {
    const UnetMap out = {branch().channels, block_.leaving.back().height};
    if (block_.step == UnetStep::kDown) return convolution(last(), own(branch()), out);
    const int64_t doubled = bytes(own(out).elements());
    return convolution(tape_.run({doubled, {last()}}), own(out), out);
  }
  Tensor output() {
    std::vector<Tensor> joined;
    if (const int64_t passing = entering_elements(block_.num_passing()); passing > 0)
      joined.push_back(slice(known(kInput), bytes(passing)));
    if (!block_.resamples || block_.step == UnetStep::kDown) joined.push_back(last());
    if (block_.resamples) {
      const int64_t size = bytes(own(block_.leaving.back()).elements());
      joined.push_back(cast(channels_first(biased(own_channels(known(kResampled)))), size));
    }
    if (block_.leaves_time) joined.push_back(slice(known(kInput), bytes(time_width() / y())));
    return join(joined);
  }
  Tensor enter() {
    const UnetMap image = parts_.unet().image(), out = own(block_.leaving.back());
    return join(
        {channels_first(convolution(slice(known(kInput), bytes(image.elements())), image, out)),
         linear(known(kHidden), time_width(), time_width() / y())});
  }

  Tensor slice(const Tensor& of, int64_t size) {
    return tape_.run({.bytes = size,
                      .inputs = {of},
                      .gradients = {kPadded},
                      .view = true,
                      .dense = batch_ == 1 || size == of.bytes()});
  }
  Tensor join(const std::vector<Tensor>& parts) {
    int64_t size = 0;
    for (const Tensor& part : parts) size += part.bytes();
    return tape_.run({size, parts, std::vector(parts.size(), batch_ == 1 ? kPassed : kPart)});
  }
  Tensor sum(const Tensor& a, const Tensor& b) {
    return tape_.run({a.bytes(), {a, b}, {kPassed, kPassed}});
  }
  /// The bias that the parts of a sum over ranks lack.
  Tensor biased(const Tensor& maps) {
    return y() == 1 ? maps : tape_.run({maps.bytes(), {maps}, {kPassed}});
  }
  Tensor own_channels(const Tensor& maps) {
    return y() == 1 ? maps : slice(maps, maps.bytes() / y());
  }
  /// To a type in which it has so many bytes.
  Tensor cast(const Tensor& from, int64_t size) {
    return from.bytes() == size ? from : tape_.run({size, {from}});
  }
  Tensor silu(const Tensor& maps) {
    return tape_.run(
        {.bytes = maps.bytes(), .inputs = {maps}, .saved = {maps}, .activations = numbers(maps)});
  }
  /// Of maps whose groups are whole on this rank.
  Tensor whole_norm(const Tensor& maps) {
    const Tensor dense = maps.is_dense() ? maps : tape_.run({maps.bytes(), {maps}, {kPassed}});
    return tape_.run({.bytes = maps.bytes(),
                      .inputs = {dense},
                      .saved = {dense},
                      .wants_dense = true,
                      .activations = numbers(maps)});
  }
  /// By the moments that ranks of y have summed up.
  Tensor group_norm(const Tensor& maps) {
    if (y() == 1) return whole_norm(maps);
    const int64_t size = maps.bytes() / dtype_bytes(dtype_) * dtype_bytes(wide());
    const Tensor centered = tape_.run({size, {cast(maps, size)}, {kPassed}});
    const auto scaled = [&](const Tensor& by) {
      return tape_.run({.bytes = size,
                        .inputs = {by},
                        .saved = {by},
                        .backward_scratch = size,
                        .activations = numbers(maps) / 2});
    };
    const Tensor weighted = scaled(scaled(centered));
    return cast(tape_.run({size, {weighted}, {kPassed}}), maps.bytes());
  }
  Tensor moments(const Tensor& maps) {
    const int64_t size = maps.bytes() / dtype_bytes(dtype_) * kWide;
    const Tensor exact = cast(maps, size);
    return tape_.run({.bytes = bytes(parts_.elements(kMoments), Dtype::kFloat64),
                      .inputs = {exact},
                      .saved = {exact},
                      .scratch = size,
                      .backward_scratch = 2 * size,
                      .activations = numbers(maps)});
  }
  Tensor weights(int64_t in, int64_t out, int64_t window = 1) {
    return tape_.leaf(tape_.tensor(in * out * window * dtype_bytes(dtype_)));
  }
  Tensor linear(const Tensor& rows, int64_t in, int64_t out) {
    return tape_.run({.bytes = bytes(out),
                      .inputs = {rows, weights(in, out)},
                      .saved = {rows},
                      .product = true});
  }
  /// In bf16 oneDNN works in layouts with the channels last.
  bool has_channels_last() const { return dtype_ == Dtype::kBfloat16 && is_for_onednn(dtype_); }
  Tensor channels_first(const Tensor& maps) {
    return has_channels_last() ? tape_.run({maps.bytes(), {maps}, {kPassed}}) : maps;
  }
  static UnetMap in_blocks(UnetMap map) {
    const int64_t block = channel_block();
    return {(map.channels + block - 1) / block * block, map.height};
  }
  /// oneDNN's own buffers on one thread, as measured (2.6.3, maps of 4 to 64 rows, 8 to 128
  /// channels, tiles): rows of both factors, and of gradients sums in fp32 and an image of both,
  /// its rows for whole vectors; one block of channels is read where it is.
  int64_t buffers(UnetMap in) const {
    if (!has_channels_last()) return 0;
    return (32 << 10) + in_blocks(in).channels * (200 + 16 * in.height);
  }
  int64_t gradient_buffers(UnetMap in, UnetMap out, int64_t window) const {
    if (!has_channels_last()) return 0;
    const int64_t from = in_blocks(in).channels, to = in_blocks(out).channels;
    const int64_t unfolded = from > channel_block() ? from : 0;
    return 4 * window * from * to + 2 * (unfolded + to) * out.height * (out.height + 72);
  }
  Tensor convolution(const Tensor& maps, UnetMap in, UnetMap out, int64_t kernel = 3) {
    const int64_t window = kernel * kernel, to = bytes(out.elements());
    const bool unfolds = !is_for_onednn(dtype_) ||
                         (dtype_ == Dtype::kFloat32 && batch_ == 1 && in.elements() <= kFewNumbers);
    const Tensor weight = weights(in.channels, out.channels, window);
    const int64_t from = maps.bytes(), dense = maps.is_dense() ? 0 : from;
    const int64_t to_blocks = bytes(in_blocks(out).elements());
    const int64_t columns = kernel == 1 ? 0 : bytes(window * in.channels * out.height * out.height);
    return tape_.run(
        {.bytes = to,
         .inputs = {maps, weight},
         .saved = {maps},
         .wants_dense = true,
         .scratch =
             dense +
             (unfolds ? columns
                      : std::max(from + weight.bytes() + to_blocks - to + buffers(in), to_blocks)),
         .backward_scratch =
             dense + (unfolds ? columns : from + to_blocks + gradient_buffers(in, out, window)),
         .product = true,
         .calls = unfolds || kernel == 1 ? 2 : kCallsOfLayouts});
  }
  /// Scores of all pixels with all, thrice: as a product, scaled and behind the softmax, which
  /// stay.
  Tensor attend(const Tensor& qkv) {
    const int64_t pixels = branch().height * branch().height, map = bytes(branch().elements());
    const Tensor scores = tape_.tensor(bytes(pixels * pixels), true);
    return tape_.run(
        {.bytes = map,
         .inputs = {qkv},
         .saved = {qkv, scores},
         .scratch = 2 * scores.bytes() - map,
         .backward_scratch = std::max(3 * scores.bytes() - 2 * map, scores.bytes() + 3 * map),
         .activations = numbers(scores),
         .calls = 9});
  }

  const UnetParts& parts_;
  const UnetBlock& block_;
  const int64_t batch_;
  const Dtype dtype_;
  LibraryTape tape_;
  Known* known_ = nullptr;  // of the value that is made now
  std::optional<Tensor> targets_;
};

}  // namespace

LibraryWork unet_work(const UnetParts& parts, const UnetOp& op, int64_t batch, Dtype dtype) {
  Work work(parts, batch, dtype);
  return op.backward ? work.backward(op) : work.forward(op);
}

}  // namespace strait
