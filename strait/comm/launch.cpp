#include "strait/comm/launch.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "strait/base/errors.h"

namespace strait::comm {
namespace {

struct Source {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* also;  // must be set too, or null
};

constexpr Source kSources[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr},
    {"PMI", "PMI_RANK", "PMI_SIZE", nullptr},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"}};

/// Numbers of hosts, the first that is set: mpirun knows its own better than the job's.
constexpr const char* kHosts[] = {"OMPI_MCA_orte_num_nodes", "SLURM_NNODES"};

int64_t number(const Lookup& lookup, const char* name) {
  const char* text = lookup(name);
  int64_t value = -1;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stop != end || value < 0)
    throw UserError(std::string(name) + " is \"" + text +
                    "\"; a launcher sets it to a whole number");
  return value;
}

}  // namespace

Launch find_launch(const Lookup& lookup) {
  for (const Source& source : kSources) {
    if (lookup(source.rank) == nullptr || lookup(source.size) == nullptr) continue;
    if (source.also != nullptr && lookup(source.also) == nullptr) continue;
    Launch launch{source.launcher, source.size, number(lookup, source.rank),
                  number(lookup, source.size)};
    if (launch.rank >= launch.size)
      throw UserError(std::string(source.rank) + " is " + std::to_string(launch.rank) + ", but " +
                      source.size + " is " + std::to_string(launch.size));
    const auto set = [&](const char* name) { return lookup(name) != nullptr; };
    const auto hosts = std::find_if(std::begin(kHosts), std::end(kHosts), set);
    if (hosts != std::end(kHosts)) launch.hosts = number(lookup, *hosts);
    return launch;
  }
  return {};
}

Launch find_launch() {
  return find_launch([](const char* name) { return std::getenv(name); });
}

namespace {
constexpr double kRounding = 1e-6;  // thirds do not add up to a whole
}

int64_t cores_per_rank(const std::vector<CoreShare>& ranks) {
  std::map<std::pair<std::string, int>, int64_t> users;  // of a core
  for (const CoreShare& rank : ranks)
    for (const int core : rank.cores) ++users[{rank.machine, core}];
  std::map<std::pair<std::string, std::string>, int64_t> sharers;  // of a quota
  for (const CoreShare& rank : ranks) ++sharers[{rank.machine, rank.quota.group}];
  double least = 0;
  for (const CoreShare& rank : ranks) {
    double share = 0;
    for (const int core : rank.cores)
      share += 1.0 / static_cast<double>(users[{rank.machine, core}]);
    const auto of_quota = static_cast<double>(sharers[{rank.machine, rank.quota.group}]);
    share = std::min(share, rank.quota.cores / of_quota);
    least = least == 0 ? share : std::min(least, share);
  }
  return std::max<int64_t>(1, static_cast<int64_t>(least + kRounding));
}

int64_t cores_together(const std::vector<CoreShare>& ranks) {
  std::set<int> cores;
  std::map<std::string, double> quotas;
  for (const CoreShare& rank : ranks) {
    cores.insert(rank.cores.begin(), rank.cores.end());
    quotas[rank.quota.group] = rank.quota.cores;
  }
  double all = 0, whole = 0;  // whole: a rank's slow core is one
  for (const auto& [group, quota] : quotas) {
    all += quota;
    whole += std::max(1.0, std::floor(quota + kRounding));
  }
  const auto bound = static_cast<double>(cores.size());
  const bool apart = quotas.size() == ranks.size() && all <= bound + kRounding;
  return std::max<int64_t>(1,
                           static_cast<int64_t>(apart ? whole : std::min(all + kRounding, bound)));
}

void check_launch(const Launch& launch, int64_t mpi_size) {
  if (!launch.launched() || launch.size == mpi_size) return;
  std::string hint = "start it with the mpirun of the MPI library that it was built with";
  if (launch.launcher == "Slurm")
    hint += ", or with srun --mpi=TYPE (srun --mpi=list shows the types; Open MPI wants pmix)";
  throw UserError(launch.size_variable + " says " + std::to_string(launch.size) +
                  " ranks, but MPI joined " + std::to_string(mpi_size) +
                  " of them into this world: " + hint);
}

}  // namespace strait::comm
