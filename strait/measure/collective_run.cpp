#include "strait/measure/collective_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "strait/base/errors.h"
#include "strait/comm/threads/thread_world.h"

namespace strait::measure {
namespace {

void require_choice(const char* key, const std::string& word,
                    const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), word) != choices.end()) return;
  ErrorPlace place;
  place.key = key;
  throw UserError(
      fmt::format("bench collective: {} \"{}\" is unknown; nearest valid choice: \"{}\" (of {})",
                  key, word, nearest_choice(word, choices), fmt::join(choices, ", ")),
      place);
}

Cluster one_level(int64_t ranks) {
  Cluster cluster;
  cluster.name = "threads";
  cluster.levels = {{"world", ranks, 1e9, 1e-6, 1}};
  cluster.ranks = ranks;
  return cluster;
}

}  // namespace

double start_value(int64_t rank, int64_t i) {
  return static_cast<double>((i * 7 + rank * 131) % 251);
}

double wanted_value(comm::Operation operation, int64_t ranks, int64_t part, int64_t rank,
                    int64_t i) {
  const int64_t sender = i / part, place = i % part;
  if (operation == comm::Operation::kAllGather) return start_value(sender, place);
  if (operation == comm::Operation::kAllToAll) return start_value(sender, part * rank + place);
  if (operation == comm::Operation::kBroadcast) return start_value(0, i);
  const int64_t element = operation == comm::Operation::kReduceScatter ? part * rank + i : i;
  double sum = 0.0;
  for (int64_t member = 0; member < ranks; ++member) sum += start_value(member, element);
  return sum;
}

double moved_bytes(comm::Operation operation, int64_t ranks, int64_t vector_bytes) {
  const double n = static_cast<double>(ranks), vector = static_cast<double>(vector_bytes);
  switch (operation) {
    case comm::Operation::kReduceScatter:
      return (n + 1.0) * vector;
    case comm::Operation::kAllReduce:
    case comm::Operation::kAllToAll:
      return 2.0 * n * vector;
    default:
      return 2.0 * (n - 1.0) * vector;
  }
}

comm::Operation operation_by_name(const std::string& name) {
  for (const auto operation : {comm::Operation::kAllGather, comm::Operation::kReduceScatter,
                               comm::Operation::kAllReduce, comm::Operation::kAllToAll}) {
    if (name == comm::operation_name(operation)) return operation;
  }
  return comm::Operation::kBroadcast;
}

void check_case(const CollectiveCase& collective) {
  require_choice("operation", collective.operation, collective_operations());
  require_choice("codec", collective.codec, {"none"});
  require_choice("dtype", dtype_name(collective.dtype), {"fp32", "fp64"});
  const int64_t bytes = collective.vector_bytes(), parts = collective.equal_parts(bytes);
  if (bytes > 0 && bytes == parts) return;
  const int64_t least = collective.ranks * dtype_bytes(collective.dtype);
  const int64_t more = bytes - parts > least / 2 || parts == 0 ? least : 0;
  throw UserError(
      fmt::format("bench collective: {} bytes are not as many whole {} elements for each of {} "
                  "ranks; nearest valid choice: {}",
                  bytes, dtype_name(collective.dtype), collective.ranks, parts + more));
}

/// One rank's buffers and its part of the operation.
struct CollectiveRun::Rank {
  std::vector<char> source, destination;
  comm::Call call;
  comm::Communicator* communicator = nullptr;
};

struct CollectiveRun::Backend {
  std::unique_ptr<comm::ThreadWorlds> worlds;
};

const std::vector<std::string>& collective_operations() {
  static const std::vector<std::string> names = {"all-gather", "reduce-scatter", "all-reduce",
                                                 "all-to-all", "broadcast"};
  return names;
}

CollectiveRun::CollectiveRun(RankTeam& team, const CollectiveCase& collective)
    : team_(team), case_(collective) {
  require_choice("backend", case_.backend, {"threads"});
  check_case(case_);
  const int64_t ranks = case_.ranks;
  ensure(team.ranks() == ranks, "CollectiveRun: the team has another number of ranks");
  part_ = case_.vector_bytes() / dtype_bytes(case_.dtype) / ranks;
  elements_ = part_ * ranks;
  backend_ = std::make_unique<Backend>();
  backend_->worlds = comm::make_thread_worlds(ranks, one_level(ranks));
  for (int64_t r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<Rank>());
  team_.run([&](int64_t r) { prepare(r); });
}

CollectiveRun::~CollectiveRun() = default;

void CollectiveRun::prepare(int64_t r) {
  const int64_t ranks = case_.ranks, width = dtype_bytes(case_.dtype);
  Rank& rank = *ranks_[r];
  std::vector<int64_t> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  rank.communicator = &backend_->worlds->world(r).communicator(members, 0);
  comm::Call& call = rank.call;
  call.operation = operation_by_name(case_.operation);
  call.dtype = case_.dtype;
  call.counts.assign(ranks, part_);
  call.label = "bench " + case_.operation;
  const bool gathers = call.operation == comm::Operation::kAllGather;
  const bool scatters = call.operation == comm::Operation::kReduceScatter;
  if (!gathers) rank.source.resize(elements_ * width);
  rank.destination.resize((scatters ? part_ : elements_) * width);
  call.source = gathers ? rank.destination.data() + part_ * r * width : rank.source.data();
  call.destination = rank.destination.data();
  if (call.operation == comm::Operation::kAllToAll) call.receive_counts = call.counts;
  if (call.operation == comm::Operation::kBroadcast) {
    call.counts = {elements_};
    if (r == 0) call.destination = rank.source.data();
  }
}

double CollectiveRun::run(int64_t repeats) {
  const double seconds = team_.run([&](int64_t r) {
    for (int64_t i = 0; i < repeats; ++i) ranks_[r]->communicator->start(ranks_[r]->call).wait();
  });
  return seconds / static_cast<double>(repeats);
}

void CollectiveRun::fill(int64_t r) {
  Rank& rank = *ranks_[r];
  const auto fill_with = [&]<class T>(T*) {
    T* destination = reinterpret_cast<T*>(rank.destination.data());
    std::fill_n(destination, rank.destination.size() / sizeof(T), T(-1));
    T* source = const_cast<T*>(static_cast<const T*>(rank.call.source));
    const bool gathers = rank.call.operation == comm::Operation::kAllGather;
    for (int64_t i = 0; i < (gathers ? part_ : elements_); ++i)
      source[i] = static_cast<T>(start_value(r, i));
  };
  if (case_.dtype == Dtype::kFloat32) {
    fill_with(static_cast<float*>(nullptr));
  } else {
    fill_with(static_cast<double*>(nullptr));
  }
}

std::string CollectiveRun::compare(int64_t r) const {
  const Rank& rank = *ranks_[r];
  const int64_t width = dtype_bytes(case_.dtype);
  const char* bytes = static_cast<const char*>(rank.call.destination);
  const int64_t count = rank.call.operation == comm::Operation::kReduceScatter ? part_ : elements_;
  for (int64_t i = 0; i < count; ++i) {
    const double found = width == 4 ? reinterpret_cast<const float*>(bytes)[i]
                                    : reinterpret_cast<const double*>(bytes)[i];
    const double wanted = wanted_value(rank.call.operation, case_.ranks, part_, r, i);
    if (found != wanted) {
      return fmt::format("{} of {} bytes: element {} on rank {} is {}, not {}", case_.operation,
                         vector_bytes(), i, r, found, wanted);
    }
  }
  return "";
}

std::string CollectiveRun::check() {
  std::vector<std::string> failures(case_.ranks);
  team_.run([&](int64_t r) { fill(r); });
  run();
  team_.run([&](int64_t r) { failures[r] = compare(r); });
  for (const std::string& failure : failures) {
    if (!failure.empty()) return failure;
  }
  return "";
}

double CollectiveRun::moved_bytes() const {
  return measure::moved_bytes(ranks_[0]->call.operation, case_.ranks, vector_bytes());
}

int64_t CollectiveRun::vector_bytes() const { return elements_ * dtype_bytes(case_.dtype); }

}  // namespace strait::measure
