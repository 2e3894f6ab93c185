#include "strait/strategy/sync/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "strait/base/errors.h"
#include "strait/config/check_mesh.h"
#include "strait/config/keys.h"
#include "strait/config/toml_tree.h"
#include "strait/topology/nearest.h"

namespace strait::strategy {
namespace {

constexpr const char* kEveryStep = "every-step";
constexpr int64_t kWholePeriod = -1;
constexpr const char* kPlain = "constant:1.0";  // penalty

/// What a policy fills in where the run file says nothing.
struct Row {
  const char* name;
  int64_t delay;  // kWholePeriod: the period, always
  bool fragments;
  double mixing;
  const char* kind;
  double learning_rate, momentum, clip;
  const char *penalty, *codec;
};
constexpr Row kRows[] = {
    // name            delay    fragments mixing outer: kind, rate, momentum, clip, penalty; codec
    {"post-local-sgd", 0, false, 0.0, "sgd", 1.0, 0.0, 0.0, kPlain, "none"},
    {"slowmo", 0, false, 0.0, "sgd", 1.0, 0.5, 0.0, kPlain, "none"},
    {"diloco", 0, false, 0.0, "nesterov", 0.7, 0.9, 0.0, kPlain, "none"},
    {"streaming-diloco", 1, true, 0.5, "nesterov", 0.4, 0.9, 0.0, kPlain, "e3m0/64"},
    {"co2", kWholePeriod, false, 0.0, "sgd", 1.0, 0.2, 1.0, "constant:2.0", "none"},
};

/// Layers of a fragment where the run file does not say how many fragments there are (Streaming
/// DiLoCo's choice).
constexpr int64_t kLayersOfAFragment = 3;

const Row& row_of(const std::string& name) {
  for (const Row& row : kRows)
    if (row.name == name) return row;
  throw InternalError("sync: unknown policy " + name);
}

/// Reads [sync] and knows how to complain about it.
class Reader {
 public:
  Reader(const Run& run, const Cluster& positions, int64_t data_ranks)
      : run_(run), positions_(positions), data_ranks_(data_ranks) {}

  Policy every_step() const {
    static const Run defaults;
    for (const Key& key : run_keys())
      if (key.name.starts_with("sync.") && key.name != "sync.policy" && run_.is_set(key.name) &&
          !same_value(key, run_, defaults))
        refuse_key(run_, key.name,
                   fmt::format("{} cannot take effect: sync.policy = \"every-step\" has no rounds; "
                               "the nearest valid choice is to remove it, or a policy such as "
                               "\"diloco\"",
                               key.name));
    return {};
  }

  Policy read() const {
    const Row& row = row_of(run_.sync.policy);
    Policy policy;
    policy.name = row.name;
    policy.steps = run_.train.steps;
    policy.replicas = data_ranks_ / replica();
    read_rounds(row, policy);
    read_outer(row, policy);
    check_surroundings();
    return policy;
  }

 private:
  template <class T>
  T written_or(const char* key, const T& written, const T& filled) const {
    return run_.is_set(key) ? written : filled;
  }

  [[noreturn]] void refuse(const char* key, const std::string& value, const std::string& why,
                           const std::string& nearest) const {
    refuse_key(run_, key,
               fmt::format("{} = {} cannot take effect: {}; the nearest valid value is {}", key,
                           value, why, nearest));
  }

  /// Data ranks of one replica: all those along z that share its weights, or several times as many.
  int64_t replica() const {
    const std::string& text = run_.sync.replica;
    const int64_t depth = run_.mesh.axes.z;
    if (text == "none") return depth;
    if (text == "world")
      refuse("sync.replica", "\"world\"",
             "all ranks would be one replica, which has none to agree "
             "with",
             "\"none\"");
    int64_t span = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), span);
    if (code != std::errc() || end != text.data() + text.size()) span = level_span(text);
    if (span < 1 || data_ranks_ % span != 0)
      refuse("sync.replica", toml_string(text),
             fmt::format("it does not divide the {} data ranks", data_ranks_),
             nearest_replica(span));
    if (span % depth != 0)
      refuse("sync.replica", toml_string(text),
             fmt::format("it would part the {} ranks of mesh.axes.z, which share their weights",
                         depth),
             nearest_replica(span));
    return span;
  }

  std::string nearest_replica(int64_t span) const {
    const int64_t depth = run_.mesh.axes.z;
    return std::to_string(depth *
                          nearest_divisor(data_ranks_ / depth, std::max<int64_t>(span / depth, 1)));
  }

  int64_t level_span(const std::string& text) const {
    std::vector<std::string> names = {"none"};
    for (size_t level = 0; level < positions_.levels.size(); ++level) {
      names.push_back(positions_.levels[level].name);
      if (text == names.back())
        return std::min(positions_.group_size(static_cast<int64_t>(level)), data_ranks_);
    }
    refuse("sync.replica", toml_string(text),
           fmt::format("it is no level of cluster {}", positions_.name),
           toml_string(nearest_choice(text, names)));
  }

  void read_rounds(const Row& row, Policy& policy) const {
    const SyncRounds& rounds = run_.sync.rounds;
    policy.period = rounds.period_steps;
    read_fragments(row, policy);
    read_delay(row, policy);
    policy.eager = rounds.eager;
    if (policy.eager && !policy.one_round_late())
      refuse("sync.rounds.eager", "true",
             fmt::format("a result is taken up {} of {} steps after it was sent, so none is stale",
                         policy.delay, policy.period),
             fmt::format("false, or sync.rounds.delay_steps = {}", policy.period));
    const bool late = policy.delay > 0 && !policy.one_round_late();
    policy.mixing = written_or("sync.rounds.mixing", rounds.mixing, late ? 0.5 : row.mixing);
    if (policy.mixing != 0 && policy.one_round_late())
      refuse("sync.rounds.mixing", toml_number(policy.mixing),
             "with a delay of a whole period every round starts from the outer weights", "0");
  }

  void read_fragments(const Row& row, Policy& policy) const {
    const SyncRounds& rounds = run_.sync.rounds;
    const int64_t layers = run_.model.shape.layers;
    const int64_t usual = (layers + kLayersOfAFragment - 1) / kLayersOfAFragment;
    const int64_t filled = row.fragments ? std::min(usual, policy.period) : 1;
    policy.fragments = written_or("sync.rounds.fragments", rounds.fragments, filled);
    const int64_t most = row.fragments ? std::min(layers, policy.period) : 1;
    if (policy.fragments > most)
      refuse("sync.rounds.fragments", std::to_string(policy.fragments),
             row.fragments ? fmt::format("there are {} layers and {} steps in a period", layers,
                                         policy.period)
                           : fmt::format("sync.policy = \"{}\" sends the model as one", row.name),
             std::to_string(most));
    policy.strided = rounds.fragment_order == "strided";
    if (!policy.strided && policy.fragments == 1)
      refuse("sync.rounds.fragment_order", toml_string(rounds.fragment_order),
             "there is one fragment", "\"strided\"");
  }

  void read_delay(const Row& row, Policy& policy) const {
    const char* key = "sync.rounds.delay_steps";
    const int64_t written = run_.sync.rounds.delay_steps;
    const int64_t interval = policy.period / policy.fragments;
    const int64_t filled =
        row.delay == kWholePeriod ? policy.period : std::min(row.delay, interval - 1);
    policy.delay = written_or(key, written, filled);
    if (row.delay == kWholePeriod && policy.delay != policy.period)
      refuse(key, std::to_string(written),
             fmt::format("sync.policy = \"{}\" takes a result up one round late", row.name),
             std::to_string(policy.period));
    if (policy.delay < interval || (policy.fragments == 1 && policy.one_round_late())) return;
    refuse(key, std::to_string(written),
           fmt::format("fragments start {} steps apart, and one is under way at a time", interval),
           std::to_string(interval - 1));
  }

  void read_outer(const Row& row, Policy& policy) const {
    const SyncOuter& outer = run_.sync.outer;
    const std::string kind = written_or("sync.outer.kind", outer.kind, std::string(row.kind));
    policy.outer.nesterov = kind == "nesterov";
    policy.outer.learning_rate =
        written_or("sync.outer.learning_rate", outer.learning_rate, row.learning_rate);
    policy.outer.momentum = written_or("sync.outer.momentum", outer.momentum, row.momentum);
    policy.outer.clip = written_or("sync.outer.clip", outer.clip, row.clip);
    read_penalty(row, policy);
    const std::string codec = written_or("sync.outer.codec", outer.codec, std::string(row.codec));
    policy.codec = codec::parse_codec(codec, "sync.outer.codec");
    if (codec::is_of_layers(policy.codec))
      refuse("sync.outer.codec", toml_string(codec),
             "most of a round's difference would not be sent, and no residual keeps it",
             toml_string("qsgd1"));
    if (beyond_range(run_, policy.codec))
      refuse("sync.outer.codec", toml_string(codec),
             "only train.precision = \"fp16\" scales values into its range", toml_string("bf16"));
    if (policy.codec.stochastic) {
      codec::CodecSpec plain = policy.codec;
      plain.stochastic = plain.error_feedback = false;
      refuse("sync.outer.codec", toml_string(codec), "nothing is drawn at the borders of rounds",
             toml_string(codec::print_codec(plain)));
    }
    if (policy.codec.error_feedback) {
      codec::CodecSpec plain = policy.codec;
      plain.error_feedback = false;
      refuse("sync.outer.codec", toml_string(codec),
             "what a round loses is in the local weights, and so in the next difference",
             toml_string(codec::print_codec(plain)));
    }
    if (policy.replicas == 1) policy.codec = {};
  }

  /// "constant:NUMBER", "lr-ratio:NUMBER" or "gap-aware:NUMBER".
  void read_penalty(const Row& row, Policy& policy) const {
    // Eager replicas have the newest part of what is late.
    const std::string text = written_or("sync.outer.penalty", run_.sync.outer.penalty,
                                        std::string(policy.eager ? kPlain : row.penalty));
    if (const auto constant = number_behind(text, "constant:"); constant && *constant >= 1)
      policy.outer.penalty = *constant;
    else if (const auto gap = number_behind(text, "gap-aware:"); gap && *gap > 0)
      policy.outer.gap = *gap;
    else if (const auto full = number_behind(text, "lr-ratio:"); full && *full > 1)
      policy.outer.penalty = *full, policy.outer.follows_rate = true;
    else
      refuse_penalty(
          "a penalty is constant:NUMBER, at least 1; lr-ratio:NUMBER, above 1, that of the full "
          "learning rate; or gap-aware:NUMBER, how far an element moves in a round to be divided "
          "by 2");
    const bool plain = policy.outer.penalty == 1 && policy.outer.gap == 0;
    if (!plain && !policy.one_round_late())
      refuse_penalty("no result is stale where none is a round late");
    if (policy.outer.gap > 0 && policy.outer.nesterov)
      refuse_penalty("a Nesterov step moves elements by more than the momentum that it keeps");
  }

  [[noreturn]] void refuse_penalty(const std::string& why) const {
    refuse("sync.outer.penalty", toml_string(run_.sync.outer.penalty), why, "\"constant:1.0\"");
  }

  /// The finite number that ends a text behind a prefix.
  static std::optional<double> number_behind(const std::string& text, const std::string& prefix) {
    if (!text.starts_with(prefix)) return std::nullopt;
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data() + prefix.size(), end, value);
    if (code != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
    return value;
  }

  void check_surroundings() const {
    if (run_.train.non_finite == "skip")
      refuse("train.non_finite", "\"skip\"",
             "replicas that skip different steps would count them differently", "\"stop\"");
    if (run_.train.precision == "fp16")
      refuse("train.precision", "\"fp16\"",
             "replicas whose loss scales skip different steps would count them differently",
             "\"bf16\"");
  }

  const Run& run_;
  const Cluster& positions_;
  int64_t data_ranks_;
};

}  // namespace

int64_t Policy::fragment_of(const std::string& unit, int64_t layers) const {
  const std::string prefix = "blocks.";
  if (!unit.starts_with(prefix)) return 0;
  const int64_t layer = std::strtoll(unit.c_str() + prefix.size(), nullptr, 10);
  return strided ? layer % fragments : layer * fragments / layers;
}

std::string Policy::describe() const {
  if (!local_steps()) return name;
  std::string text = fmt::format("{} replica{}, {} every {} steps", replicas,
                                 replicas == 1 ? "" : "s", name, period);
  if (fragments > 1)
    text += fmt::format(", {} {} fragments", fragments, strided ? "strided" : "sequential");
  if (one_round_late())
    text += ", taken up one round late";
  else if (delay > 0)
    text += fmt::format(", taken up {} step{} later", delay, delay == 1 ? "" : "s");
  if (eager) text += ", eager";
  if (mixing > 0) text += fmt::format(", mixing {}", mixing);
  text += fmt::format("; outer {} of rate {}, momentum {}", outer.nesterov ? "nesterov" : "sgd",
                      outer.learning_rate, outer.momentum);
  if (outer.clip > 0) text += fmt::format(", clip {}", outer.clip);
  if (outer.penalty != 1) text += fmt::format(", penalty {}", outer.penalty);
  if (outer.follows_rate) text += " that follows the inner rate";
  if (outer.gap > 0) text += fmt::format(", penalty by the gap {}", outer.gap);
  if (codec.kind != codec::CodecKind::kNone) text += ", " + codec::print_codec(codec);
  return text;
}

int64_t Policy::first_border(int64_t fragment) const {
  const int64_t phase = fragment * period / fragments;
  return phase >= 1 ? phase : period;
}

Policy resolve_policy(const Run& run, const Cluster& positions, int64_t data_ranks) {
  const Reader reader(run, positions, data_ranks);
  return run.sync.policy == kEveryStep ? reader.every_step() : reader.read();
}

}  // namespace strait::strategy
