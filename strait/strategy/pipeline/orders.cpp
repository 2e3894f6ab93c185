#include "strait/strategy/pipeline/orders.h"

#include <algorithm>
#include <utility>

#include "strait/base/errors.h"

namespace strait::strategy {
namespace {

using enum draft::Work;

/// Of an order on one stage: how many forwards stand before the first pair of forward and backward,
/// and behind how many more backwards the weights of a micro-batch come; -1: with its own backward.
struct Rhythm {
  int64_t warm_up = 0;
  int64_t delay = -1;
};

Tasks tasks_of(const Rhythm& rhythm, const OrderPlace& place) {
  const int64_t count = place.micro_batches * place.chunks;
  Tasks tasks;
  int64_t forwards = 0, weights = 0;
  while (forwards < std::min(rhythm.warm_up, count))
    tasks.push_back(nth_task(kForwards, forwards++, place));
  for (int64_t backwards = 0; backwards < count; ++backwards) {
    if (forwards < count) tasks.push_back(nth_task(kForwards, forwards++, place));
    tasks.push_back(nth_task(kBackwards, backwards, place));
    if (rhythm.delay >= 0 && backwards >= rhythm.delay)
      tasks.push_back(nth_task(kWeights, weights++, place));
  }
  while (rhythm.delay >= 0 && weights < count)
    tasks.push_back(nth_task(kWeights, weights++, place));
  return tasks;
}

/// How many forwards a warm-up of zero bubbles is ahead of that of 1F1B, as a factor; 0: another.
int64_t zero_bubble(const std::string& order) {
  return order == "zero-bubble-h1" ? 1 : order == "zero-bubble-h2" ? 2 : 0;
}

Rhythm rhythm_of(const std::string& order, const OrderPlace& place) {
  const int64_t behind = place.stages - 1 - place.stage, all = place.micro_batches * place.chunks;
  if (order == "gpipe") return {all};
  if (order == "1f1b") return {behind};
  if (order == "interleaved") {
    // With one turn of micro-batches every chunk waits for the last one.
    if (place.micro_batches == place.stages) return {all};
    return {2 * behind + (place.chunks - 1) * place.stages};
  }
  const int64_t ahead = zero_bubble(order);
  ensure(ahead > 0, "an order of a pipeline that has no name");
  // On the first stage nobody waits for a backward, so its weights need not be apart.
  return {std::min(ahead * behind, place.micro_batches - 1),
          place.stage == 0 ? -1 : ahead * place.stage};
}

}  // namespace

Task nth_task(draft::Work work, int64_t nth, const OrderPlace& place) {
  const int64_t turn = place.stages * place.chunks;
  if (place.chunks == 1) return {work, nth, 0};
  const int64_t chunk = nth / place.stages % place.chunks;
  return {work, nth / turn * place.stages + nth % place.stages,
          work == kForwards ? chunk : place.chunks - 1 - chunk};
}

int64_t number_of(const Task& task, const OrderPlace& place) {
  if (place.chunks == 1) return task.micro_batch;
  const int64_t chunk = task.work == kForwards ? task.chunk : place.chunks - 1 - task.chunk;
  return (task.micro_batch / place.stages * place.chunks + chunk) * place.stages +
         task.micro_batch % place.stages;
}

int64_t messages_ahead(const std::string& order) {
  return order == "interleaved" || order == "zero-bubble-h2" ? 2 : 1;
}

Tasks stage_tasks(const std::string& order, const OrderPlace& place) {
  return tasks_of(rhythm_of(order, place), place);
}

Tasks forward_tasks(const OrderPlace& place) {
  Tasks tasks;
  for (int64_t micro_batch = 0; micro_batch < place.micro_batches; ++micro_batch)
    for (int64_t chunk = 0; chunk < place.chunks; ++chunk)
      tasks.push_back({kForwards, micro_batch, chunk});
  return tasks;
}

const std::vector<std::string>& order_names() {
  static const std::vector<std::string> names = {"gpipe", "1f1b", "interleaved", "zero-bubble-h1",
                                                 "zero-bubble-h2"};
  return names;
}

bool has_split_backward(const std::string& order) { return zero_bubble(order) > 0; }

TaskSteps::TaskSteps(Tasks tasks, int64_t micro_batches, int64_t turn)
    : tasks_(std::move(tasks)), micro_batches_(micro_batches) {
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (i == 0 || tasks_[i].work <= tasks_[i - 1].work) begins_.push_back(i);
    splits_ = splits_ || tasks_[i].work == kWeights;
  }
  begins_.push_back(tasks_.size());
  find_equal(turn);
  count_places();
}

/// `marks`: and neither is the first or the last of its work on the chunk.
bool TaskSteps::same(int64_t a, int64_t b, int64_t advance, bool marks) const {
  const auto marked = [&](const Task& task) {
    return task.micro_batch == 0 || task.micro_batch == micro_batches_ - 1;
  };
  return std::equal(begin(a), end(a), begin(b), end(b), [&](const Task& one, const Task& other) {
    return one.work == other.work && one.chunk == other.chunk &&
           one.micro_batch + advance == other.micro_batch &&
           !(marks && (marked(one) || marked(other)));
  });
}

int64_t TaskSteps::advance_of(int64_t step, int64_t period) const {
  return begin(step + period)->micro_batch - begin(step)->micro_batch;
}

bool TaskSteps::repeats(int64_t step) const {
  return step + 1 < count() && same(step, step + 1, advance_of(step, 1), false);
}

/// Micro-steps [first, result) repeat with this period; `first` where they do not.
int64_t TaskSteps::end_of_run(int64_t first, int64_t period) const {
  if (first + period >= count()) return first;
  const int64_t advance = advance_of(first, period);
  int64_t end = first;
  while (end + period < count() && same(end, end + period, advance, true)) ++end;
  return end == first ? first : end + period;
}

/// From the front the longest run with either period. One turn before and the one behind have the
/// same works, so that what passes from micro-step to micro-step passes there, too.
void TaskSteps::find_equal(int64_t turn) {
  for (int64_t first = 1; first < count();) {
    draft::EqualSteps best;
    for (const int64_t period : {int64_t{1}, turn}) {
      const int64_t end = end_of_run(first, period);
      const int64_t turns = (end - first) / period;
      if (turns < 2 || end - first <= best.end - best.begin) continue;
      best = {first, first + turns * period, period, advance_of(first, period)};
    }
    if (best.end == 0) {
      ++first;
      continue;
    }
    const int64_t begin = first;
    first = best.end;
    const auto alike = [&](int64_t a, int64_t b) {
      return b < count() && same(a, b, advance_of(a, b - a), false);
    };
    if (!alike(begin - 1, begin - 1 + best.period)) best.begin += best.period;
    while (best.end > best.begin && !alike(best.end - best.period, best.end))
      best.end -= best.period;
    if (best.end - best.begin >= 2 * best.period) equal_.push_back(best);
  }
}

void TaskSteps::count_places() {
  const draft::Work done = splits_ ? kWeights : kBackwards;
  const bool trains =
      std::ranges::any_of(tasks_, [](const Task& task) { return task.work == kBackwards; });
  int64_t newest = 0, oldest = 0;
  for (const Task& task : tasks_) {
    newest = std::max(newest, task.micro_batch);
    places_ = std::max(places_, newest - oldest + 1);
    if (trains && task.work == done && task.chunk == 0) oldest = task.micro_batch + 1;
  }
}

}  // namespace strait::strategy
