// Which cores the ranks of one host keep to (runtime.bind).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "strait/topology/core_tree.h"

namespace strait {

struct BindRequest {
  std::string kind = "auto";  // none | auto | core
  int64_t threads_per_rank = 1;
  /// Logical processors that each rank of this host may use as it was started, by rank.
  std::map<int64_t, std::vector<int>> usable;
};

/// Logical processors of each rank whose cores this process can see, empty when nothing is bound,
/// and both in words for people.
struct Binding {
  std::map<int64_t, std::vector<int>> cpus;
  std::string text;

  /// Of a rank, none when it is not bound.
  std::vector<int> of(int64_t rank) const;
};

/// Divides what ranks may use alike among them in whole cores (core_tree.h); `host` is what
/// read_core_tree() gave. The same answer on every rank of the host. "auto" binds when all ranks
/// may use every core, so that nobody has bound them before, some cores share what others do not,
/// and there are a core for each rank and a logical processor for each of its threads; otherwise
/// the text says why it does not. Where all cores are alike binding has been measured to bring
/// nothing: a compute thread can then not make way for a transfer. "core" also divides what is left
/// to the ranks; UserError naming runtime.bind and the nearest valid choice where it cannot:
/// without hwloc, with too few cores, or where ranks may use some of each other's cores and some
/// not.
Binding choose_binding(const BindRequest& request, const std::optional<CoreTree>& host);

}  // namespace strait
