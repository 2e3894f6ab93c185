#include "strait/topology/binding.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/threads/cores.h"

namespace strait {
namespace {

/// Ranks that may use the same logical processors, by these.
using Sharers = std::map<std::vector<int>, std::vector<int64_t>>;

Sharers sharers_of(const BindRequest& request) {
  Sharers sharers;
  for (const auto& [rank, cpus] : request.usable) sharers[cpus].push_back(rank);
  return sharers;
}

bool overlap(const Sharers& sharers) {
  std::vector<int> all;
  for (const auto& [cpus, ranks] : sharers) all.insert(all.end(), cpus.begin(), cpus.end());
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) != all.end();
}

/// Why these ranks cannot have cores of their own; "" = they can.
std::string obstacle(const CoreTree& cores, size_t ranks, int64_t threads_per_rank) {
  const int64_t num_ranks = static_cast<int64_t>(ranks);
  if (cores.num_cores() < num_ranks)
    return fmt::format("{} ranks share {} core{}", ranks, cores.num_cores(),
                       cores.num_cores() == 1 ? "" : "s");
  for (const std::vector<int>& share : divide_cores(cores, num_ranks))
    if (static_cast<int64_t>(share.size()) < threads_per_rank)
      return fmt::format("a rank's share of the cores is {}, less than its {} threads",
                         core_ranges(share), threads_per_rank);
  return "";
}

/// All cores share the same things, so that any is as good as another.
bool alike(const CoreTree& tree) {
  if (tree.parts.size() == 1) return alike(tree.parts.front());
  return std::all_of(tree.parts.begin(), tree.parts.end(),
                     [](const CoreTree& part) { return part.num_cores() == 1; });
}

/// Why nobody is bound when only "auto" asks for it; "" = nothing stands against it.
std::string reluctance(const BindRequest& request, const Sharers& sharers, const CoreTree& host) {
  const std::vector<int>& usable = sharers.begin()->first;
  if (sharers.size() > 1) return "ranks were started on cores of their own";
  if (usable != host.all_cpus())
    return fmt::format("the run was started on cores {} of {}", core_ranges(usable),
                       core_ranges(host.all_cpus()));
  if (request.usable.size() == 1) return "one rank may use all";
  if (alike(host)) return "all cores share the same caches and memory";
  return "";
}

[[noreturn]] void refuse(const std::string& why) {
  ErrorPlace place;
  place.key = "runtime.bind";
  throw UserError(
      "runtime.bind = \"core\" cannot be held: " + why + "; the nearest valid choice is \"none\"",
      place);
}

Binding divide(const Sharers& sharers, const CoreTree& host) {
  Binding binding;
  for (const auto& [cpus, ranks] : sharers) {
    const std::optional<CoreTree> cores = restrict_cores(host, cpus);
    if (!cores) continue;  // that control group divides its own
    const auto shares = divide_cores(*cores, static_cast<int64_t>(ranks.size()));
    for (size_t at = 0; at < ranks.size(); ++at) binding.cpus[ranks[at]] = shares[at];
  }
  constexpr size_t kShown = 8;
  size_t shown = 0;
  for (const auto& [rank, cpus] : binding.cpus) {
    if (shown++ == kShown) {
      binding.text += ", ...";
      break;
    }
    binding.text +=
        fmt::format("{}rank {} on {}", binding.text.empty() ? "" : ", ", rank, core_ranges(cpus));
  }
  return binding;
}

/// Why the ranks are not bound; "" = they can be.
std::string refusal(const BindRequest& request, const Sharers& sharers,
                    const std::optional<CoreTree>& host) {
  if (!host) return "this program was built without hwloc (libhwloc-dev), or hwloc found no core";
  if (request.kind == "auto")
    if (std::string why = reluctance(request, sharers, *host); !why.empty()) return why;
  if (overlap(sharers)) return "the launcher has given ranks a part of each other's cores";
  for (const auto& [cpus, ranks] : sharers) {
    const std::optional<CoreTree> cores = restrict_cores(*host, cpus);
    if (!cores) continue;  // in another control group
    if (std::string why = obstacle(*cores, ranks.size(), request.threads_per_rank); !why.empty())
      return why;
  }
  return "";
}

}  // namespace

std::vector<int> Binding::of(int64_t rank) const {
  const auto found = cpus.find(rank);
  return found == cpus.end() ? std::vector<int>() : found->second;
}

Binding choose_binding(const BindRequest& request, const std::optional<CoreTree>& host) {
  ensure(!request.usable.empty(), "choose_binding: no rank");
  if (request.kind == "none") return {{}, "not bound: runtime.bind = \"none\""};
  const Sharers sharers = sharers_of(request);
  if (const std::string why = refusal(request, sharers, host); !why.empty()) {
    if (request.kind == "core") refuse(why);
    return {{}, "not bound: " + why};
  }
  return divide(sharers, *host);
}

}  // namespace strait
