#include "strait/kernel/product_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <limits>
#include <map>
#include <mutex>

#include "strait/base/errors.h"
#include "strait/kernel/gemm.h"
#include "strait/kernel/onednn.h"

namespace strait::kernel {
namespace {

using enum NarrowProducts;

constexpr std::array kWays = {kWidened, kPaired, kTiles, kOneDnn, kSplit};

std::vector<NarrowProducts> ways_of(Dtype type, const Multipliers& has) {
  std::vector<NarrowProducts> ways;
  for (const NarrowProducts way : kWays)
    if (suits(way, type) && can_multiply(has, way)) ways.push_back(way);
  return ways;
}

std::string missing_text(NarrowProducts products, Dtype type) {
  if (!suits(products, type)) return fmt::format("that does not multiply {}", dtype_name(type));
  if (products == kOneDnn)
    return onednn_version().empty() ? "this program was built without oneDNN"
                                    : onednn_version() + " has no bf16 products for this processor";
  return products == kPaired ? "this processor has no AVX512_BF16"
                             : "this processor has no matrix tiles for bf16";
}

[[noreturn]] void refuse(const ProductRequest& request, const Multipliers& has) {
  std::vector<std::string> names;
  for (const NarrowProducts way : ways_of(request.type, has)) names.emplace_back(product_name(way));
  const NarrowProducts nearest = suits(has.usual, request.type) ? has.usual : kWidened;
  ErrorPlace place;
  place.key = request.key;
  throw UserError(
      fmt::format("{} = \"{}\", but {}; {} is multiplied by {} here; the nearest valid choice is "
                  "\"{}\"",
                  request.key, product_name(request.products),
                  missing_text(request.products, request.type), dtype_name(request.type),
                  fmt::join(names, ", "), product_name(nearest)),
      place);
}

/// The products' operands are of one thread; 128 x 512 x 512 each.
class Sample {
 public:
  Sample() : a_(kRows * kWidth, Bfloat16(0.5f)), b_(kWidth * kWidth, Bfloat16(0.25f)) {
    narrow_.resize(a_.size());
    wide_.resize(b_.size());
  }

  void run(NarrowProducts products) {
    const auto product = [&](const MatrixView<Bfloat16>& b) {
      GemmCall<Bfloat16> call{kRows, kWidth,         kWidth, {a_.data(), kWidth, 1},
                              b,     narrow_.data(), kWidth};
      call.products = products;
      gemm(call, 1);
    };
    product({b_.data(), 1, kWidth});
    product({b_.data(), kWidth, 1});
    GemmCall<Bfloat16, float> weight{
        kWidth,       kWidth, kRows, {a_.data(), 1, kWidth}, {a_.data(), kWidth, 1},
        wide_.data(), kWidth};
    weight.products = products;
    gemm(weight, 1);
  }

 private:
  static constexpr int64_t kRows = 128, kWidth = 512;
  std::vector<Bfloat16> a_, b_, narrow_;
  std::vector<float> wide_;
};

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double time_products(NarrowProducts products) {
  constexpr int kRuns = 4;
  Sample sample;
  sample.run(products);
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    const double began = thread_seconds();
    sample.run(products);
    best = std::min(best, thread_seconds() - began);
  }
  return best;
}

/// `first`, or the fastest of `ways` if that is kClearlyFaster times as fast.
ProductChoice by_measurement(NarrowProducts first, const std::vector<NarrowProducts>& ways,
                             const ProductSeconds& seconds) {
  std::vector<std::pair<double, NarrowProducts>> measured;
  for (const NarrowProducts way : ways) measured.emplace_back(seconds(way), way);
  const auto own = std::ranges::find(measured, first, &std::pair<double, NarrowProducts>::second);
  const auto best = std::ranges::min_element(measured);
  const auto [taken_seconds, taken] = own->first >= kClearlyFaster * best->first ? *best : *own;
  std::vector<std::string> others;
  for (const auto& [time, way] : measured)
    if (way != taken)
      others.push_back(fmt::format("{:.2f} times {}", time / taken_seconds, product_name(way)));
  return {taken, others.empty() ? "all that there is"
                                : fmt::format("measured on one core: {}", fmt::join(others, ", "))};
}

}  // namespace

Multipliers own_multipliers() {
  Multipliers has;
#if defined(__x86_64__)
  has.pairs = __builtin_cpu_supports("avx512bf16");
#endif
  has.tiles = tile_access();
  has.onednn = has_onednn();
  has.usual = narrow_products();
  return has;
}

bool suits(NarrowProducts products, Dtype type) {
  if (products == kAutomatic) return true;
  if (type == Dtype::kFloat32) return products == kWidened || products == kSplit;
  return type == Dtype::kBfloat16 && products != kSplit;
}

bool can_multiply(const Multipliers& has, NarrowProducts products) {
  switch (products) {
    case kPaired:
      return has.pairs;
    case kTiles:
    case kSplit:
      return has.tiles == TileAccess::kGranted;
    case kOneDnn:
      return has.onednn;
    default:
      return true;
  }
}

const char* product_name(NarrowProducts products) {
  switch (products) {
    case kWidened:
      return "widened";
    case kPaired:
      return "paired";
    case kTiles:
      return "tiles";
    case kPlainTiles:
      return "plain tiles";
    case kOneDnn:
      return "onednn";
    case kSplit:
      return "split";
    case kAutomatic:
      break;
  }
  return "auto";
}

const std::vector<std::string>& product_names() {
  static const std::vector<std::string> names = {"auto",  "widened", "paired",
                                                 "tiles", "onednn",  "split"};
  return names;
}

NarrowProducts product_named(const std::string& name, const std::string& key) {
  if (name == product_name(kAutomatic)) return kAutomatic;
  for (const NarrowProducts products : kWays)
    if (name == product_name(products)) return products;
  ErrorPlace place;
  place.key = key;
  throw UserError(fmt::format("{} = \"{}\" is not a way to multiply; the nearest is \"{}\" "
                              "({})",
                              key, name, nearest_choice(name, product_names()),
                              fmt::join(product_names(), ", ")),
                  place);
}

ProductChoice choose_products(const ProductRequest& request, const Multipliers& has,
                              const ProductSeconds& seconds) {
  const bool denied = has.tiles == TileAccess::kDenied, wide = request.type == Dtype::kFloat32;
  const std::string denial = "the system denies matrix tiles to this process";
  if (request.products != kAutomatic) {
    if (!suits(request.products, request.type)) refuse(request, has);
    if (denied && request.products == (wide ? kSplit : kTiles))
      return {wide ? kWidened : has.usual, "tiles were asked for, but " + denial};
    if (!can_multiply(has, request.products)) refuse(request, has);
    return {request.products, "asked for"};
  }
  if (wide) return {};
  // Tiles are several times as fast as vectors, and neighbours on the same core, who slow them down
  // and up again, would make a measurement choose by chance.
  const bool tiles = can_multiply(has, kTiles);
  ProductChoice choice;
  if (tiles || request.deterministic || !seconds) {
    choice = {tiles ? kTiles : has.usual, "by the kind of processor, not by measurements"};
  } else {
    choice = by_measurement(has.usual, ways_of(request.type, has), seconds);
  }
  if (denied) choice.reason += "; " + denial;
  return choice;
}

ProductSeconds measured_product_seconds() {
  return [](NarrowProducts products) {
    static std::mutex mutex;
    static std::map<NarrowProducts, double> known;
    const std::lock_guard lock(mutex);
    const auto found = known.find(products);
    if (found != known.end()) return found->second;
    return known.emplace(products, time_products(products)).first->second;
  };
}

}  // namespace strait::kernel
