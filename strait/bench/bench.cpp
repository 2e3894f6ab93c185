#include "strait/bench/bench.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "strait/base/errors.h"
#include "strait/device/blas.h"
#include "strait/kernel/product_choice.h"
#include "strait/measure/rank_team.h"

namespace strait::measure {
namespace {

constexpr int64_t kLargeGemm = 1024;

Json number_or_null(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json peer_to_json(const BenchPeer& peer, const BenchRow& row) {
  std::optional<double> speedup;
  if (peer.seconds && row.seconds) speedup = peer.seconds->median / row.seconds->median;
  return Json::object({{"name", peer.name},
                       {"version", text_or_null(peer.version)},
                       {"seconds", peer.seconds ? report::to_json(*peer.seconds) : Json(nullptr)},
                       {"speedup", number_or_null(speedup)},
                       {"missing", text_or_null(peer.missing)}});
}

Json row_to_json(const BenchRow& row) {
  std::optional<double> rate;
  if (row.seconds) rate = row.work / row.seconds->median;
  Json yardstick(nullptr);
  if (row.bound && row.seconds)
    yardstick = Json::object({{"name", row.bound->name}, {"seconds", row.bound->seconds}});
  std::optional<double> share;
  if (yardstick.is_object()) share = row.share();
  const bool passed = share && *share > 1;
  Json peers = Json::array();
  for (const BenchPeer& peer : row.peers) peers.push_back(peer_to_json(peer, row));
  Json json =
      Json::object({{"case", row.bench_case},
                    {"seconds", row.seconds ? report::to_json(*row.seconds) : Json(nullptr)},
                    {"rate", number_or_null(rate)},
                    {"rate_unit", row.rate_unit},
                    {"bound", yardstick},
                    {"bound_share", number_or_null(share)},
                    {"reference", passed ? yardstick : Json()},
                    {"reference_share", passed ? Json(*share) : Json()},
                    {"peers", peers},
                    {"failure", text_or_null(row.failure)}});
  if (!row.breakdown.is_null()) json["breakdown"] = row.breakdown;
  return json;
}

BenchPeer peer_of(const Timings& timings) {
  BenchPeer peer{timings.name, timings.version, std::nullopt, timings.missing};
  if (timings.missing.empty()) peer.seconds = report::statistics_of(timings.seconds);
  return peer;
}

}  // namespace

double BenchRow::share() const {
  return bound && seconds ? bound->seconds / seconds->median
                          : std::numeric_limits<double>::quiet_NaN();
}

bool BenchReport::verified() const {
  return !rows.empty() && std::all_of(rows.begin(), rows.end(),
                                      [](const BenchRow& row) { return row.failure.empty(); });
}

Json bench_rows_to_json(const std::vector<BenchRow>& rows) {
  Json list = Json::array();
  for (const BenchRow& row : rows) list.push_back(row_to_json(row));
  return list;
}

Json bench_report_to_json(const BenchReport& report) {
  return Json::object({{"subject", report.subject},
                       {"verified", report.verified()},
                       {"rows", bench_rows_to_json(report.rows)}});
}

BenchRow bench_row(const BenchWork& work, const TimingOptions& options) {
  BenchRow row;
  row.bench_case = work.bench_case;
  row.work = work.work;
  row.rate_unit = work.rate_unit;
  row.failure = work.verify();
  if (!row.failure.empty()) return row;
  std::vector<Contender> contenders = {work.ours};
  if (work.bound) contenders.push_back(*work.bound);
  contenders.insert(contenders.end(), work.peers.begin(), work.peers.end());
  const std::vector<Timings> timings = time_interleaved(contenders, options);
  row.seconds = report::statistics_of(timings[0].seconds);
  size_t first_peer = 1;
  if (work.bound) {
    const Timings& bound = timings[first_peer++];
    if (!bound.missing.empty())
      throw InternalError("bench: the bound could not be measured: " + bound.missing);
    row.bound =
        BenchBound{bound.name, report::statistics_of(bound.seconds).median * work.bound_factor};
  }
  for (size_t i = first_peer; i < timings.size(); ++i) row.peers.push_back(peer_of(timings[i]));
  return row;
}

BenchRow bench_gemm(const GemmShape& shape, Dtype dtype, int64_t threads,
                    const TimingOptions& options, kernel::NarrowProducts products) {
  const ThreadLimit limit(threads);
  Gemm gemm(shape, dtype, products);
  const GemmShape large{.m = kLargeGemm, .n = kLargeGemm, .k = kLargeGemm};
  std::vector<std::unique_ptr<Gemm>> ceilings, others;
  ceilings.push_back(std::make_unique<Gemm>(large, dtype, products));
  const GemmEngine other = other_engine(dtype);
  ceilings.push_back(std::make_unique<Gemm>(large, dtype, other));
  others.push_back(std::make_unique<Gemm>(shape, dtype, other));
  BenchWork work;
  work.bench_case = Json::object({{"m", shape.m},
                                  {"n", shape.n},
                                  {"k", shape.k},
                                  {"dtype", dtype_name(dtype)},
                                  {"threads", threads}});
  if (products != kernel::NarrowProducts::kAutomatic)
    work.bench_case["products"] = kernel::product_name(products);
  work.verify = [&] {
    gemm.run();
    return gemm.check();
  };
  work.ours = {"strait", "", timed([&] { gemm.run(); }), ""};
  work.work = shape.flops();
  work.rate_unit = "flops_per_second";
  work.bound = Contender{"large-gemm", "",
                         [&] {
                           double best = std::numeric_limits<double>::infinity();
                           for (const auto& ceiling : ceilings) {
                             best = std::min(best, timed([&] { ceiling->run(); })());
                           }
                           return best;
                         },
                         ""};
  work.bound_factor = shape.flops() / large.flops();
  for (const auto& peer : others) {
    const bool blas = other_engine(dtype) == GemmEngine::kBlas;
    work.peers.push_back({blas ? "blas" : "torch",
                          blas ? device::blas_report().configuration : STRAIT_TORCH_VERSION,
                          timed([&peer] { peer->run(); }), ""});
  }
  return bench_row(work, options);
}

}  // namespace strait::measure
