// Orders of pipelines: what each stage does one after another, what is in flight, and the idle time
// that their papers state, by an evaluation of the tasks that knows nothing of programs.
#include "strait/strategy/pipeline/orders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "strait/base/errors.h"

namespace strait::strategy {
namespace {

using enum draft::Work;

std::vector<Tasks> all_tasks(const std::string& order, int64_t stages, int64_t micro_batches,
                             int64_t chunks = 1) {
  std::vector<Tasks> tasks;
  for (int64_t stage = 0; stage < stages; ++stage)
    tasks.push_back(stage_tasks(order, {stages, stage, chunks, micro_batches}));
  return tasks;
}

std::string text_of(const Tasks& tasks) {
  std::string text;
  for (const Task& task : tasks)
    text += "FBW"[static_cast<int>(task.work)] + std::to_string(task.micro_batch) +
            (task.chunk > 0 ? "'" : "") + " ";
  return text;
}

/// Whole numbers, so that sums are exact.
struct Times {
  int64_t forward = 1, backward = 1, weight = 1;
  int64_t all() const { return forward + backward + weight; }
};

struct Idle {
  int64_t end = 0;              // of the last task of all
  std::vector<int64_t> inside;  // [stage] between its first and its last task
};

/// Every task starts when its stage is free and what it needs is there. -1: tasks that wait for
/// each other.
class Evaluation {
 public:
  Evaluation(std::vector<Tasks> tasks, int64_t chunks, const Times& times)
      : tasks_(std::move(tasks)),
        runs_(static_cast<int64_t>(tasks_.size()) * chunks),
        times_(times) {}

  Idle run() {
    const size_t stages = tasks_.size();
    std::vector<size_t> next(stages, 0);
    std::vector<int64_t> now(stages, 0), first(stages, -1), busy(stages, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < stages; ++stage) {
        const bool split = std::ranges::any_of(
            tasks_[stage], [](const Task& task) { return task.work == kWeights; });
        for (; next[stage] < tasks_[stage].size(); ++next[stage], moved = true) {
          const Task& task = tasks_[stage][next[stage]];
          const int64_t run =
              task.chunk * static_cast<int64_t>(stages) + static_cast<int64_t>(stage);
          const int64_t needed = needed_at(task, run);
          if (needed < 0) break;
          const int64_t begin = std::max(now[stage], needed);
          const int64_t takes = task.work == kForwards  ? times_.forward
                                : task.work == kWeights ? times_.weight
                                : split                 ? times_.backward
                                                        : times_.backward + times_.weight;
          // The gradient of the input leaves before that of the weights is made.
          const int64_t leaves = task.work == kBackwards ? begin + times_.backward : begin + takes;
          if (first[stage] < 0) first[stage] = begin;
          now[stage] = begin + takes;
          busy[stage] += takes;
          ends_[{task.work, task.micro_batch, run}] = sends_whole_ ? now[stage] : leaves;
        }
      }
    }
    Idle idle;
    for (size_t stage = 0; stage < stages; ++stage) {
      if (next[stage] < tasks_[stage].size()) return {-1, {}};
      idle.end = std::max(idle.end, now[stage]);
      idle.inside.push_back(now[stage] - first[stage] - busy[stage]);
    }
    return idle;
  }

  /// Where a stage without tasks of weights does both at once, nothing leaves before the end.
  Evaluation& whole_backwards() {
    sends_whole_ = true;
    return *this;
  }

 private:
  int64_t end_of(draft::Work work, int64_t micro_batch, int64_t run) const {
    if (run < 0 || run >= runs_) return 0;
    const auto found = ends_.find({work, micro_batch, run});
    return found == ends_.end() ? -1 : found->second;
  }
  int64_t needed_at(const Task& task, int64_t run) const {
    if (task.work == kForwards) return end_of(kForwards, task.micro_batch, run - 1);
    const int64_t own =
        end_of(task.work == kBackwards ? kForwards : kBackwards, task.micro_batch, run);
    const int64_t behind =
        task.work == kBackwards ? end_of(kBackwards, task.micro_batch, run + 1) : 0;
    return own < 0 || behind < 0 ? -1 : std::max(own, behind);
  }

  const std::vector<Tasks> tasks_;
  const int64_t runs_;
  const Times times_;
  bool sends_whole_ = false;
  std::map<std::tuple<draft::Work, int64_t, int64_t>, int64_t> ends_;
};

int64_t most(const std::vector<int64_t>& values) { return *std::ranges::max_element(values); }

const std::vector<Times> kTimes = {{1, 1, 1}, {4, 4, 3}, {4, 5, 3}, {4, 6, 2}};

TEST(Orders, AreTheWrittenOnes) {
  EXPECT_EQ(text_of(stage_tasks("gpipe", {2, 0, 1, 3})), "F0 F1 F2 B0 B1 B2 ");
  EXPECT_EQ(text_of(stage_tasks("1f1b", {2, 0, 1, 3})), "F0 F1 B0 F2 B1 B2 ");
  EXPECT_EQ(text_of(stage_tasks("1f1b", {2, 1, 1, 3})), "F0 B0 F1 B1 F2 B2 ");
  EXPECT_EQ(text_of(stage_tasks("interleaved", {2, 1, 2, 4})),
            "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3 ");
  EXPECT_EQ(text_of(stage_tasks("zero-bubble-h1", {3, 2, 1, 4})),
            "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3 ");
  EXPECT_EQ(text_of(stage_tasks("zero-bubble-h1", {3, 0, 1, 4})), "F0 F1 F2 B0 F3 B1 B2 B3 ");
  EXPECT_EQ(text_of(stage_tasks("zero-bubble-h2", {2, 1, 1, 4})),
            "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3 ");
  EXPECT_EQ(text_of(stage_tasks("zero-bubble-h2", {2, 0, 1, 4})), "F0 F1 F2 B0 F3 B1 B2 B3 ");
  EXPECT_THROW(stage_tasks("1f2b", {2, 0, 1, 4}), InternalError);
}

TEST(Orders, DoEverythingOnce) {
  for (const std::string& order : order_names())
    for (const int64_t stages : {2, 3, 5})
      for (const int64_t turns : {1, 2, 4}) {
        const int64_t chunks = order == "interleaved" ? 3 : 1, micro_batches = stages * turns;
        for (const Tasks& tasks : all_tasks(order, stages, micro_batches, chunks)) {
          std::map<std::tuple<draft::Work, int64_t, int64_t>, int> done;
          for (const Task& task : tasks) ++done[{task.work, task.micro_batch, task.chunk}];
          const bool split =
              std::ranges::any_of(tasks, [](const Task& task) { return task.work == kWeights; });
          EXPECT_EQ(static_cast<int64_t>(done.size()), micro_batches * chunks * (split ? 3 : 2));
          EXPECT_EQ(tasks.size(), done.size());
          std::map<draft::Work, int64_t> next;
          for (const Task& task : tasks) {
            const OrderPlace place{stages, 0, chunks, micro_batches};
            EXPECT_EQ(number_of(task, place), next[task.work]);
            EXPECT_EQ(nth_task(task.work, next[task.work]++, place), task);
          }
        }
      }
}

TEST(Orders, IdleTimesAreThoseOfThePapers) {
  for (const Times& t : kTimes)
    for (const int64_t p : {2, 3, 4, 8})
      for (const int64_t m : {2 * p, 3 * p, 5 * p}) {
        SCOPED_TRACE(testing::Message() << p << " stages, " << m << " micro-batches, " << t.forward
                                        << t.backward << t.weight);
        const int64_t work = m * t.all();
        for (const char* order : {"gpipe", "1f1b"}) {
          const Idle idle = Evaluation(all_tasks(order, p, m), 1, t).whole_backwards().run();
          EXPECT_EQ(idle.end, work + (p - 1) * t.all()) << order;
        }
        const Idle h1 = Evaluation(all_tasks("zero-bubble-h1", p, m), 1, t).run();
        EXPECT_EQ(most(h1.inside), (p - 1) * (t.forward + t.backward - t.weight));
        const Idle h2 = Evaluation(all_tasks("zero-bubble-h2", p, m), 1, t).run();
        EXPECT_EQ(most(h2.inside),
                  std::max<int64_t>((p - 1) * (t.forward + t.backward - 2 * t.weight), 0));
        for (const int64_t v : {2, 3}) {
          // A chunk does a v-th of the work: idle time is a v-th of that of 1F1B.
          const Times part = {t.forward, t.backward, t.weight};
          const Idle idle =
              Evaluation(all_tasks("interleaved", p, m, v), v, part).whole_backwards().run();
          EXPECT_EQ(idle.end, v * work + (p - 1) * t.all());
        }
      }
}

TEST(Orders, HoldAtMostSoManyMicroBatches) {
  const int64_t p = 4;
  for (const int64_t m : {1, 2, 3, 4, 9, 20})
    for (const std::string order : {"1f1b", "zero-bubble-h1", "zero-bubble-h2", "gpipe"})
      for (int64_t stage = 0; stage < p; ++stage) {
        const Tasks tasks = stage_tasks(order, {p, stage, 1, m});
        const bool split =
            std::ranges::any_of(tasks, [](const Task& task) { return task.work == kWeights; });
        int64_t forward = 0, backward = 0, done = 0, in_flight = 0, held = 0;
        for (const Task& task : tasks) {
          forward += task.work == kForwards;
          backward += task.work == kBackwards;
          done += task.work == (split ? kWeights : kBackwards);
          in_flight = std::max(in_flight, forward - backward);
          held = std::max(held, forward - done);
        }
        SCOPED_TRACE(order + ", stage " + std::to_string(stage) + ", " + std::to_string(m));
        const bool ahead = order == "zero-bubble-h2";
        const int64_t behind = (ahead ? 2 : 1) * (p - 1 - stage);
        EXPECT_EQ(in_flight, order == "gpipe" ? m : std::min(behind + 1, m));
        EXPECT_LE(held, order == "gpipe" ? m : ahead ? 2 * p - 1 : p);
        EXPECT_EQ(TaskSteps(tasks, m, p).places(), held);
      }
}

/// What loops do is what the tasks say.
TEST(Orders, EqualMicroStepsDifferInMicroBatchesAlone) {
  for (const std::string& order : order_names())
    for (const int64_t p : {2, 3, 4})
      for (const int64_t turns : {1, 3, 8})
        for (int64_t stage = 0; stage < p; ++stage) {
          const int64_t v = order == "interleaved" ? 2 : 1, m = p * turns;
          const Tasks tasks = stage_tasks(order, {p, stage, v, m});
          const TaskSteps steps(tasks, m, p * v);
          int64_t counted = 0, looped = 0;
          for (int64_t step = 0; step < steps.count(); ++step)
            counted += steps.end(step) - steps.begin(step);
          EXPECT_EQ(counted, static_cast<int64_t>(tasks.size()));
          for (const draft::EqualSteps& equal : steps.equal()) {
            EXPECT_EQ((equal.end - equal.begin) % equal.period, 0);
            looped += equal.end - equal.begin;
            for (int64_t step = equal.begin; step < equal.end; ++step) {
              const int64_t turn = (step - equal.begin) / equal.period;
              const Task* first = steps.begin(step - turn * equal.period);
              for (const Task* task = steps.begin(step); task != steps.end(step); ++task) {
                Task want = *first++;
                want.micro_batch += turn * equal.advance;
                EXPECT_EQ(*task, want);
                EXPECT_TRUE(task->micro_batch > 0 && task->micro_batch < m - 1);
              }
              const int64_t next =
                  std::min(step + equal.period,
                           equal.end - equal.period + (step - equal.begin) % equal.period);
              EXPECT_EQ(steps.repeats(step), steps.repeats(next));
            }
          }
          if (turns == 8) {
            EXPECT_GT(looped, steps.count() / 2) << order << " " << p << " " << stage;
          }
        }
}

}  // namespace
}  // namespace strait::strategy
