// Borders of rounds executed on thread ranks, against the algorithms written out element by
// element: DiLoCo (2311.08105), Streaming DiLoCo (2501.18512, Algorithm 2), eager updates
// (2502.12996), CO2 (2401.16265). The inner step is a small formula, so that nothing but the
// borders is under test.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "strait/base/random.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/device/arithmetic.h"
#include "strait/execute/environment.h"
#include "strait/runtime/runner.h"
#include "strait/shape/shape.h"
#include "strait/strategy/compose/compose.h"
#include "strait/verify/verify.h"

namespace strait {
namespace {

using strategy::Policy;

/// w += rate * (pull of the replica - w): the test's own kernel.
const program::Kernel kInnerStep = {
    "inner_step", program::Bound::kMemory, {{"weights", program::kUpdates}}, {}};

constexpr double kRate = 0.2;

/// An inner learning rate that falls, for penalties that follow it: to a tenth in 20 steps.
execute::StepRules falling_rate() {
  execute::StepRules rules;
  rules.optimizer.schedule = "linear";
  rules.optimizer.learning_rate = 2;
  rules.optimizer.minimum_learning_rate = 0.2;
  rules.optimizer.warmup_steps = 0;
  rules.optimizer.decay_steps = 20;
  rules.total_steps = 23;
  return rules;
}
/// Of the full one, in step t, counted from 1.
double rate_share(int64_t t) { return std::max(0.1, 1 - 0.9 * static_cast<double>(t - 1) / 20); }

/// What a replica's data pull an element to in a step.
double pull(int64_t replica, int64_t element, int64_t step) {
  return std::sin(0.7 * static_cast<double>(element % 101) + 1.3 * static_cast<double>(replica) +
                  0.05 * static_cast<double>(step));
}
double inner_step(double weight, int64_t replica, int64_t element, int64_t step) {
  return weight + kRate * (pull(replica, element, step) - weight);
}

double initial(int64_t element) { return std::cos(0.3 * static_cast<double>(element)); }

ModelShape tiny_shape() {
  ModelOptions model;
  model.shape = {};
  model.family = "gpt2";
  model.shape.layers = 4;
  model.shape.heads = model.shape.kv_heads = 1;
  model.shape.width = 4;
  model.shape.ffn_width = 5;
  model.shape.context = 6;
  return model_shape(model, 7);
}

/// A weight after a step.
using Inner = double (*)(double weight, int64_t replica, int64_t element, int64_t step);

struct Case {
  Policy policy;
  int64_t span = 1;  // ranks of a replica, over which the weights are split
  int64_t steps = 23;
  Inner inner = inner_step;
  bool ends = false;  // takes up what is under way behind the last step
  int64_t ranks() const { return policy.replicas * span; }
  /// Kernels reach nothing that they do not declare: in cases that are not long.
  bool guarded() const { return ranks() <= 2 && steps < 100; }
};

/// All the state of one replica's element.
struct Element {
  double local = 0, outer = 0, velocity = 0;
  double gap = 0;  // what the outer weight moved by at the last border
};
using Elements = std::vector<Element>;  // of one unit

/// The algorithm as the papers have it, for one element of one unit.
class PlainElement {
 public:
  PlainElement(const Policy& policy, int64_t fragment, int64_t element)
      : policy_(policy), fragment_(fragment), number_(element) {
    replicas_.assign(static_cast<size_t>(policy.replicas),
                     {.local = initial(element), .outer = initial(element)});
    sent_.assign(replicas_.size(), 0);
  }

  const std::vector<Element>& run(int64_t steps, bool ends) {
    for (int64_t t = 1; t <= steps; ++t) {
      for (size_t m = 0; m < replicas_.size(); ++m)
        replicas_[m].local =
            inner_step(replicas_[m].local, static_cast<int64_t>(m), number_, t - 1);
      border(t);
      if (t == policy_.steps) last_border(t);
    }
    if (ends) end(steps + 1);
    return replicas_;
  }

 private:
  bool starts(int64_t t) const {
    const int64_t phase = fragment_ * policy_.period / policy_.fragments;
    return t >= 1 && (t - phase) % policy_.period == 0 && t >= phase;
  }
  std::vector<double> differences() const {
    std::vector<double> all;
    for (const Element& replica : replicas_) all.push_back(replica.outer - replica.local);
    return all;
  }
  void border(int64_t t) {
    if (policy_.one_round_late()) {
      if (starts(t)) late_round(t);
      return;
    }
    if (starts(t)) sent_ = differences(), under_way_ = t;
    if (under_way_ > 0 && t == under_way_ + policy_.delay) {
      for (size_t m = 0; m < replicas_.size(); ++m) take(m, mean(sent_), t);
      if (policy_.delay == 0) taken_ = t;
      under_way_ = 0;
    }
  }
  /// The result of the round before is taken up; the differences of this one go on their way.
  void late_round(int64_t t) {
    const std::vector<double> fresh = differences();
    const double stale = mean(sent_);
    for (size_t m = 0; m < replicas_.size(); ++m)
      take(
          m,
          policy_.eager ? stale + (fresh[m] - sent_[m]) / static_cast<double>(fresh.size()) : stale,
          t);
    sent_ = fresh;
  }
  /// Behind the last step of a run every fragment has a border, unless a result of it is under way.
  void last_border(int64_t t) {
    if (policy_.one_round_late()) {
      if (!starts(t)) late_round(t);
    } else if (under_way_ == 0 && taken_ != t) {
      const double fresh = mean(differences());
      for (size_t m = 0; m < replicas_.size(); ++m) take(m, fresh, t);
    }
  }
  /// The last result is taken up; eager replicas, which have it in parts, then take their mean.
  void end(int64_t t) {
    const double stale = mean(sent_);
    const auto replicas = static_cast<double>(replicas_.size());
    const bool under_way = policy_.one_round_late() || under_way_ > 0;
    for (size_t m = 0; m < replicas_.size() && under_way; ++m)
      take(m, policy_.eager ? stale - sent_[m] / replicas : stale, t);
    if (!policy_.eager) return;
    Element sum;
    for (const Element& replica : replicas_)
      sum.outer += replica.outer / replicas, sum.velocity += replica.velocity / replicas;
    for (Element& replica : replicas_)
      replica.local = replica.outer = sum.outer, replica.velocity = sum.velocity;
  }
  static double mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  }
  void take(size_t m, double difference, int64_t t) {
    const strategy::OuterRule& rule = policy_.outer;
    Element& replica = replicas_[m];
    // CO2's penalty; by the gap, 1 + |x[t,0] - x[t-1,0]| / C.
    if (rule.gap > 0)
      difference /= 1 + std::abs(replica.gap) / rule.gap;
    else
      difference /= rule.follows_rate ? std::max(1.0, rule.penalty * rate_share(t)) : rule.penalty;
    const double before = replica.outer;
    replica.velocity = rule.momentum * replica.velocity + difference;
    if (rule.clip > 0)
      replica.velocity = std::min(rule.clip, std::max(-rule.clip, replica.velocity));
    replica.outer -=
        rule.learning_rate *
        (rule.nesterov ? difference + rule.momentum * replica.velocity : replica.velocity);
    replica.gap = replica.outer - before;
    replica.local = policy_.mixing * replica.local + (1 - policy_.mixing) * replica.outer;
  }

  const Policy& policy_;
  int64_t fragment_, number_;
  std::vector<Element> replicas_;
  std::vector<double> sent_;
  int64_t under_way_ = 0;  // step after which it started; 0 = none
  int64_t taken_ = 0;      // step after which that was taken up which left after it; 0 = none
};

/// Programs of a case: inner steps by the kernel above, borders as compose writes them.
class Programs {
 public:
  explicit Programs(const Case& c)
      : shape_(tiny_shape()), mesh_(Mesh({}, c.ranks()).with_replicas(c.policy.replicas)) {
    cluster_.name = "test";
    cluster_.ranks = c.ranks();
    cluster_.levels = {{"world", c.ranks(), 1e9, 1e-6, 1}};
    placement_.preset = "zero3";
    placement_.ranks = placement_.weights = placement_.gradients = placement_.optimizer = c.span;
    placement_.set_hops();
    draft::StepOptions options;
    options.dtype = Dtype::kFloat64;
    options.local_steps = true;
    const strategy::Ingredients from{shape_, placement_, cluster_, mesh_, c.policy};
    for (const strategy::Border& border : strategy::borders_of(c.policy))
      add(strategy::compose_border(from, options, border));
    add({inner_steps()});
    set_.rules = strategy::border_rules(c.policy, "step", [](const auto&) { return false; });
    for (const auto& [purpose, kinds] : std::map<std::string, std::vector<std::string>>{
             {"step", {"steady"}}, {"start", {}}, {"end", {}}, {"show", {"exchange"}}})
      set_.rules.push_back({purpose, "*", {}, kinds});
    program::verify_or_throw(set_);
  }

  const program::ProgramSet& set() const { return set_; }
  const ModelShape& shape() const { return shape_; }
  const Mesh& mesh() const { return mesh_; }
  const Cluster& cluster() const { return cluster_; }

 private:
  void add(std::vector<program::Program> classes) {
    std::string kind = classes.front().step_kind;
    set_.kinds.push_back({std::move(kind), std::move(classes)});
  }
  /// On all values of weights that the exchange has.
  program::Program inner_steps() const {
    program::Program program = set_.classes("exchange").front();
    program.step_kind = "steady";
    program.body.clear();
    for (size_t at = 0; at < program.arrays.size(); ++at) {
      if (!program.arrays[at].name.starts_with("w.")) continue;
      for (int64_t index = 0; index < program.arrays[at].count; ++index) {
        program::Op op = draft::kernel_op(kInnerStep);
        op.writes = {{static_cast<int>(at), {index}, program::Access::kUpdate}};
        program.body.emplace_back(std::move(op));
      }
    }
    return program;
  }

  ModelShape shape_;
  Mesh mesh_;
  Cluster cluster_;
  strategy::Placement placement_;
  program::ProgramSet set_;
};

/// Number of an element of the model, as the formulas above take it.
int64_t number_of(int64_t unit, int64_t element) { return unit * 1000 + element; }

/// One rank of a case.
class Rank {
 public:
  Rank(const Programs& programs, comm::World& world, const Case& c)
      : programs_(programs),
        inner_(c.inner),
        world_(world),
        state_(pool_, world.rank()),
        arithmetic_(device::make_arithmetic(nullptr, 1)),
        site_{world, state_, pool_, executors_} {
    if (c.guarded()) pool_.separate_pages();
    site_.guarded = c.guarded();
    execute::add_outer_executors(executors_, *arithmetic_, falling_rate());
    execute::add_coding_executors(executors_, *arithmetic_);
    executors_.add(kInnerStep, runtime::Execute([this](const runtime::Instance& instance) {
                     inner_steps(instance);
                   }));
    runner_ = std::make_unique<runtime::Runner>(programs.set(), site_);
    for (const program::StepKind& kind : programs.set().kinds) runner_->prepare(kind.name);
    for (const char* letter : {"w", "o"})
      for_each_value(letter, [](int64_t number, double& value) { value = initial(number); });
  }

  void run(const char* purpose, int64_t step) { runner_->run(purpose, step); }
  void drain() { state_.drain(); }

  /// visit(number, value) for all elements that the rank holds of the arrays of a letter.
  template <class Visit>
  void for_each_value(const std::string& letter, const Visit& visit) {
    for (const program::StepKind& kind : programs_.set().kinds)
      for (const program::ValueArray& array : kind.classes.front().arrays)
        if (array.name.starts_with(letter + ".") && array.address.unit >= 0 &&
            visited_.insert(array.name).second)
          for (int64_t index = 0; index < array.count; ++index)
            visit_value(kind.classes.front(), array, index, visit);
    visited_.clear();
  }

 private:
  template <class Visit>
  void visit_value(const program::Program& program, const program::ValueArray& array, int64_t index,
                   const Visit& visit) {
    auto* values =
        static_cast<double*>(state_.array(array.name).buffers[static_cast<size_t>(index)]);
    const int64_t begin = program::value_begin(program, array, world_.rank());
    const int64_t count = program::value_elements(program, array, world_.rank());
    for (int64_t i = 0; i < count; ++i)
      visit(number_of(array.address.unit + index, begin + i), values[i]);
  }

  void inner_steps(const runtime::Instance& instance) {
    const runtime::Bound& weights = instance.writes.front();
    const program::ValueArray& array = instance.array(weights);
    const int64_t begin = program::value_begin(*instance.program, array, world_.rank());
    const int64_t replica = programs_.mesh().coordinate(world_.rank(), "replica");
    auto* values = static_cast<double*>(weights.data);
    for (int64_t i = 0; i < weights.bytes / static_cast<int64_t>(sizeof(double)); ++i)
      values[i] = inner_(values[i], replica,
                         number_of(array.address.unit + weights.index, begin + i), instance.step);
  }

  const Programs& programs_;
  Inner inner_;
  comm::World& world_;
  memory::Pool pool_;
  runtime::State state_;
  runtime::Executors executors_;
  std::unique_ptr<device::Arithmetic> arithmetic_;
  runtime::Site site_;
  std::unique_ptr<runtime::Runner> runner_;
  std::set<std::string> visited_;
};

/// Runs a case and compares all its state with the plain algorithm's.
void expect_as_written(const Case& c) {
  const Programs programs(c);
  std::map<int64_t, std::vector<Element>> expected;  // by number: of all replicas
  for (size_t unit = 0; unit < programs.shape().units.size(); ++unit) {
    const UnitShape& its = programs.shape().units[unit];
    const int64_t fragment = c.policy.fragment_of(its.name, programs.shape().options.layers);
    for (int64_t element = 0; element < its.elements; ++element) {
      const int64_t number = number_of(static_cast<int64_t>(unit), element);
      expected[number] = PlainElement(c.policy, fragment, number).run(c.steps, c.ends);
    }
  }
  std::mutex mutex;
  int64_t compared = 0;
  const auto worlds = comm::make_thread_worlds(c.ranks(), programs.cluster());
  comm::run_ranks(*worlds, [&](comm::World& world) {
    Rank rank(programs, world, c);
    for (int64_t step = 0; step < c.steps; ++step) rank.run("step", step);
    if (c.ends) rank.run("end", c.steps);
    rank.drain();
    const std::lock_guard lock(mutex);
    const auto replica = static_cast<size_t>(programs.mesh().coordinate(world.rank(), "replica"));
    const auto compare = [&](const char* letter, double Element::*member) {
      rank.for_each_value(letter, [&](int64_t number, double& value) {
        ASSERT_NEAR(value, expected.at(number)[replica].*member, 1e-12)
            << letter << " of element " << number << " in replica " << replica;
        ++compared;
      });
    };
    compare("w", &Element::local);
    compare("o", &Element::outer);
    compare("u", &Element::velocity);
  });
  EXPECT_GE(compared, 3 * c.policy.replicas * programs.shape().parameters());
}

Policy policy(const char* name, int64_t replicas, int64_t period) {
  Policy made;
  made.name = name;
  made.replicas = replicas;
  made.period = period;
  made.outer = {false, 1, 0};
  return made;
}

Policy diloco(int64_t replicas, int64_t period) {
  Policy made = policy("diloco", replicas, period);
  made.outer = {true, 0.7, 0.9};
  return made;
}

Policy streaming(int64_t replicas, int64_t period, int64_t fragments, int64_t delay) {
  Policy made = diloco(replicas, period);
  made.name = "streaming-diloco";
  made.fragments = fragments;
  made.delay = delay;
  made.mixing = 0.5;
  return made;
}

Policy co2(int64_t replicas, int64_t period) {
  Policy made = policy("co2", replicas, period);
  made.delay = period;
  made.outer = {false, 1, 0.2, 0.05, 1.5};
  return made;
}

TEST(LocalSteps, AveragesAreTakenAtOnce) {
  for (const int64_t replicas : {1, 2, 3})
    for (const int64_t span : {1, 2}) {
      expect_as_written({policy("post-local-sgd", replicas, 4), span});
      expect_as_written({policy("post-local-sgd", replicas, 1), span});
      Policy slow = policy("slowmo", replicas, 5);
      slow.outer.momentum = 0.5;
      expect_as_written({slow, span});
      expect_as_written({diloco(replicas, 5), span});
    }
}

TEST(LocalSteps, FragmentsHaveBordersOfTheirOwn) {
  for (const int64_t replicas : {1, 2, 4})
    for (const int64_t fragments : {1, 2, 3, 4})
      for (const int64_t delay : {0, 1, 2}) {
        if (delay >= 9 / fragments) continue;
        SCOPED_TRACE(testing::Message()
                     << replicas << " replicas, " << fragments << " fragments, delay " << delay);
        Policy made = streaming(replicas, 9, fragments, delay);
        expect_as_written({made});
        made.strided = false;
        expect_as_written({made, replicas == 2 ? 2 : 1});
      }
}

TEST(LocalSteps, MixingMovesBetweenTheOuterAndTheLocalWeights) {
  for (const double mixing : {0.0, 0.3, 1.0}) {
    Policy made = streaming(2, 6, 2, 2);
    made.mixing = mixing;
    expect_as_written({made});
  }
}

TEST(LocalSteps, AResultMayBeARoundLate) {
  for (const int64_t replicas : {1, 2, 3}) {
    expect_as_written({co2(replicas, 4)});
    expect_as_written({co2(replicas, 1), 2});
    Policy by_gap = co2(replicas, 3);
    by_gap.outer = {.learning_rate = 0.8, .momentum = 0.3, .gap = 0.02};
    expect_as_written({by_gap, 2});
    by_gap.eager = true;
    expect_as_written({by_gap});
    Policy by_rate = co2(replicas, 3);
    by_rate.outer.penalty = 4, by_rate.outer.follows_rate = true;
    expect_as_written({by_rate, 2});
    Policy eager = diloco(replicas, 4);
    eager.delay = 4;
    eager.eager = true;
    expect_as_written({eager});
  }
}

TEST(LocalSteps, TheLastResultIsTakenUpAtTheEnd) {
  for (const int64_t replicas : {1, 2, 3})
    for (const int64_t span : {1, 2}) {
      const auto ends = [&](const Policy& policy) {
        expect_as_written({.policy = policy, .span = span, .ends = true});
      };
      ends(co2(replicas, 4));
      ends(streaming(replicas, 9, 3, 2));  // 23 steps: one is under way
      for (Policy eager : {co2(replicas, 4), diloco(replicas, 4)}) {
        eager.delay = 4;
        eager.eager = true;
        ends(eager);
      }
    }
}

TEST(LocalSteps, ARunEndsWithABorderOfEveryFragment) {
  for (const int64_t steps : {3, 8, 12, 13})
    for (const int64_t replicas : {1, 3}) {
      SCOPED_TRACE(testing::Message() << steps << " steps, " << replicas << " replicas");
      const auto ends = [&](Policy policy) {
        policy.steps = steps;
        expect_as_written(
            {.policy = policy, .span = replicas == 1 ? 2 : 1, .steps = steps, .ends = true});
      };
      ends(diloco(replicas, 5));
      ends(co2(replicas, 4));
      Policy eager = diloco(replicas, 4);
      eager.delay = 4;
      eager.eager = true;
      ends(eager);
      for (const int64_t delay : {0, 1, 2}) ends(streaming(replicas, 9, 3, delay));
    }
}

/// f = w^2 / 2, one step of gradient descent: what stays of w.
constexpr double kStays = 0.5;
double descend(double weight, int64_t, int64_t, int64_t) { return kStays * weight; }

/// The largest weight that a case has come to.
double largest(const Case& c) {
  const Programs programs(c);
  std::mutex mutex;
  double largest = 0;
  const auto worlds = comm::make_thread_worlds(c.ranks(), programs.cluster());
  comm::run_ranks(*worlds, [&](comm::World& world) {
    Rank rank(programs, world, c);
    for (int64_t step = 0; step < c.steps; ++step) rank.run("step", step);
    rank.drain();
    const std::lock_guard lock(mutex);
    rank.for_each_value(
        "o", [&](int64_t, double& value) { largest = std::max(largest, std::abs(value)); });
  });
  return largest;
}

/// Rounds of tau steps of which rho = kStays^tau of the weights is left; c = (1 - rho) / penalty.
/// A round late, x' = (1 + beta) x - (beta + alpha c) x_before, which is stable when alpha c < 1 -
/// beta; at once it is when alpha c < 2 (1 + beta).
struct Limit {
  double momentum, learning_rate, penalty;
  int64_t period;
  bool late, converges;
};

TEST(LocalSteps, LateRoundsAreStableWhereTheRecursionIs) {
  const double rho = kStays, c = 1 - rho;  // of a period of one step
  const std::vector<Limit> limits = {
      {0.2, 0.75 / c, 1, 1, true, true}, {0.2, 0.85 / c, 1, 1, true, false},
      {0.9, 0.09 / c, 1, 1, true, true}, {0.9, 0.11 / c, 1, 1, true, false},
      {0.2, 2.3 / c, 1, 1, false, true}, {0.2, 2.5 / c, 1, 1, false, false},
      {0.9, 1, 1, 4, true, false},  // rho is small, and beta large
      {0.9, 1, 11, 4, true, true},  // the penalty's limit is alpha (1 - rho) / (1 - beta) = 9.4
      {0.9, 1, 8, 4, true, false},
  };
  for (const Limit& limit : limits) {
    SCOPED_TRACE(testing::Message() << "momentum " << limit.momentum << ", rate "
                                    << limit.learning_rate << ", penalty " << limit.penalty);
    Policy made = policy(limit.late ? "co2" : "slowmo", 2, limit.period);
    made.delay = limit.late ? limit.period : 0;
    made.outer = {false, limit.learning_rate, limit.momentum, 0, limit.penalty};
    const double after = largest({made, 1, 600 * limit.period, descend});
    if (limit.converges)
      EXPECT_LT(after, 0.3);
    else
      EXPECT_GT(after, 3);
  }
}

}  // namespace
}  // namespace strait
