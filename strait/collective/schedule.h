// Collective algorithms as data: which member pulls which elements from whom, in which step.
// Defined once; comm executes these transfers, cost sums them up, sim replays them on a virtual
// clock.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace strait::collective {

enum class Operation : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kShift,
  kBroadcast,
  kSend,
  kReceive,
  kBarrier
};
/// "all-gather", "reduce-scatter", ... A shift hands what a member has to the next one, or to one
/// behind that, and what the last one has to the first.
const char* operation_name(Operation operation);

/// All but direct exist for all-gather, reduce-scatter and all-reduce; hierarchical for broadcast
/// too. direct: every member pulls straight from the owner; sums run in member order 0..n-1. ring:
/// members pull from their left neighbour in n-1 steps; the sum of part p runs in the order p+1,
/// p+2, ..., p (mod n), so its last bits differ from direct. recursive: doubling gathers and
/// halving reductions in log2 n steps, n a power of two (Thakur, Rabenseifner, Gropp 2005); a sum
/// is the balanced tree whose widest step comes first. hierarchical: a byte crosses each boundary
/// of `Request::nest` once per group that needs it; inside the groups members pass it on. Sums run
/// inside the innermost groups first, then over those, in member order at each level. With one
/// boundary this is the two-level form.
enum class Algorithm : uint8_t { kDirect, kRing, kRecursive, kHierarchical };
const char* algorithm_name(Algorithm algorithm);
bool has_form(Operation operation, Algorithm algorithm);
bool is_power_of_two(int64_t members);

/// What a schedule is made from. Send and receive are the two sides of one schedule.
struct Request {
  Operation operation = Operation::kBarrier;
  Algorithm algorithm = Algorithm::kDirect;
  int64_t members = 1;
  /// Elements of each part, any of them 0. all-gather, reduce-scatter, all-reduce: one per member;
  /// all-to-all: members x members, row = sender, or one row when all send alike; shift, broadcast,
  /// send, receive: {elements}; barrier: empty.
  std::vector<int64_t> counts;
  int64_t root = 0;      // broadcast: owner; send, receive: sender; shift: members between both
  int64_t receiver = 0;  // send, receive: position of the receiver
  /// hierarchical: [level][position] = number of the group that holds the position, innermost
  /// first, equal neighbours together, each group inside one of the next level; the outermost level
  /// may be left out.
  std::vector<std::vector<int64_t>> nest;
  /// hierarchical: every part passes the levels in so many pieces, one behind the other, so that
  /// all levels are busy at once; the others: 1.
  int64_t pieces = 1;
};

/// The buffers of one member. Scratch holds the whole vector of partial sums that a reduction other
/// than the direct one passes on.
enum class Place : uint8_t { kSource, kDestination, kScratch };

/// One pull. Offsets count elements in the named buffer of `from` and `to`.
struct Transfer {
  int64_t step = 0;
  int64_t from = 0;
  int64_t to = 0;    // from == to: a copy inside one member, which costs no bytes on any link
  bool add = false;  // add to what is there instead of overwriting it
  Place source = Place::kSource;
  int64_t source_offset = 0;
  Place destination = Place::kDestination;
  int64_t destination_offset = 0;
  int64_t elements = 0;
  bool operator==(const Transfer&) const = default;
};

/// All transfers of one operation.
///   * Transfers to one member stand in the order in which it makes them; steps never decrease.
///   * A transfer of step s that reads a destination or scratch waits until `from` has made its own
///     transfers of all steps before s. One that reads a source waits only until `from` has
///     arrived.
///   * Neighbouring transfers of one member and step with equal destination form one sum: a copy
///     and then additions, in order. An executor takes it in one pass that reads all before it
///     writes, which is what makes the in-place forms right.
struct Schedule {
  Request request;
  int64_t steps = 0;
  std::vector<Transfer> transfers;  // by receiver, then by step
};

/// The steps in which bytes cross links one after another: what latency is multiplied by. A world
/// of one has none. Barrier: 1. `levels`: boundaries of a hierarchical form, the outermost
/// included; its further pieces are a step each.
int64_t latency_steps(Operation operation, Algorithm algorithm, int64_t members, int64_t levels = 1,
                      int64_t pieces = 1);

/// Throws UserError when counts, root or algorithm do not fit the operation. Cost O(counts).
void check_request(const Request& request);

/// What member `position` pulls (its own copies included), O(members) of them. Transfers of no
/// elements are left out. Precondition: check_request passes.
std::vector<Transfer> transfers_to(const Request& request, int64_t position);

/// What the other members pull from `position`, by receiver, then by step. O(transfers of all).
std::vector<Transfer> transfers_from(const Request& request, int64_t position);

/// Everything, O(members^2). Throws UserError as check_request does.
Schedule make_schedule(const Request& request);

/// Splits `elements` over `members` with grain ceil(elements / members): the last parts may be
/// short or empty.
std::vector<int64_t> even_counts(int64_t elements, int64_t members);

}  // namespace strait::collective
