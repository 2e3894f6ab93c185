#include "tests/model/runner.h"

#include <algorithm>
#include <cmath>

namespace strait::model {

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.family << " layers " << c.options.layers << " heads " << c.options.heads
             << " width " << c.options.width << " ffn " << c.options.ffn_width << " bias "
             << c.options.bias << " dropout " << c.options.dropout << " tied "
             << c.options.tied_head << " vocabulary " << c.vocabulary << " batch " << c.batch
             << " tokens " << c.tokens << " documents " << c.documents;
}

std::vector<double> random_values(int64_t count, uint64_t seed, double scale) {
  const RandomStream stream(seed, "test.values");
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = scale * stream.normal(i);
  return values;
}

std::vector<Case> family_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* family, int64_t kv_heads, double dropout, bool tied) {
    cases.push_back({{2, 8, kv_heads, 48, 20, 13, false, dropout, tied}, 40, 3, 11, tied, family});
    return &cases.back().options;
  };
  add("qwen2", 4, 0.1, true)->bias = true;
  ShapeOptions* windowed = add("mistral", 4, 0.1, false);
  windowed->window = 4;
  windowed->head_width = 10;
  add("mistral", 8, 0.0, true)->window = 1;
  add("qwen3", 4, 0.1, true)->head_width = 10;
  add("qwen3", 8, 0.0, false);
  add("olmo2", 8, 0.0, false);
  add("olmo2", 4, 0.0, true)->norm_eps = 1e-3;
  ShapeOptions* gemma = add("gemma3", 4, 0.0, true);
  gemma->layers = 3;
  gemma->head_width = 10;
  gemma->window = 4;
  gemma->window_pattern = 2;
  gemma->query_scalar = 7.0;
  gemma->rope.theta = 500.0;
  gemma->rope.factor = 3.0;
  gemma->rope.original_context = 1;
  gemma->rope.local_theta = 20.0;
  ShapeOptions* capped_logits = add("gemma3", 8, 0.0, false);
  capped_logits->window = 3;
  capped_logits->logit_cap = 2.0;
  ShapeOptions* capped = add("gemma2", 4, 0.0, true);
  capped->layers = 3;
  capped->head_width = 10;
  capped->window = 4;
  capped->window_pattern = 2;
  capped->query_scalar = 7.0;
  capped->score_cap = 1.5;
  capped->logit_cap = 3.0;
  add("gemma2", 8, 0.0, false)->score_cap = 0.5;
  return cases;
}

ReferenceInput random_input(const Case& test_case, uint64_t seed) {
  const RandomStream stream(seed, "test.tokens");
  ReferenceInput input;
  input.family = test_case.family;
  input.options = test_case.options;
  input.vocabulary = test_case.vocabulary;
  input.batch = test_case.batch;
  input.tokens = test_case.tokens;
  input.seed = seed + 17;
  const auto vocabulary = static_cast<uint64_t>(test_case.vocabulary);
  int32_t start = 0;
  for (int64_t row = 0; row < test_case.batch * test_case.tokens; ++row) {
    const auto counter = static_cast<uint64_t>(row) * 4;
    input.inputs.push_back(static_cast<int32_t>(stream.below(counter, vocabulary)));
    const bool counted = stream.below(counter + 1, 5) != 0;
    input.targets.push_back(counted ? static_cast<int32_t>(stream.below(counter + 2, vocabulary))
                                    : -1);
    const auto position = static_cast<int32_t>(row % test_case.tokens);
    if (position == 0) start = 0;
    if (stream.below(counter + 3, 6) == 0) start = position;
    if (test_case.documents) input.starts.push_back(start);
  }
  for (int64_t b = 0; b < test_case.batch; ++b) input.sequences.push_back(1000 + 7 * b);
  return input;
}

std::vector<std::vector<double>> random_units(const ModelShape& shape, uint64_t seed) {
  std::vector<std::vector<double>> units;
  for (const UnitShape& unit : shape.units) {
    std::vector<double>& values =
        units.emplace_back(random_values(unit.elements, seed + units.size(), 0.3));
    for (const ParameterShape& parameter : unit.parameters) {
      if (parameter.initial != Initial::kOnes) continue;
      for (int64_t i = 0; i < parameter.elements(); ++i)
        values[static_cast<size_t>(parameter.offset + i)] += 1.0;
    }
  }
  return units;
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

template <class T>
Runner<T>::Runner(const ModelShape& shape, const ReferenceInput& given,
                  const std::vector<std::vector<double>>& units, int threads)
    : model(shape, kDtype), input(given) {
  settings.dtype = kDtype;
  settings.threads = threads;
  settings.seed = input.seed;
  settings.training = input.training;
  batch = {input.batch,
           input.tokens,
           input.inputs.data(),
           input.targets.data(),
           input.starts.empty() ? nullptr : input.starts.data(),
           input.sequences.data()};
  for (const std::vector<double>& unit : units) weights.push_back(convert<T>(unit));
}

template <class T>
Call Runner<T>::call(int64_t block) {
  Call result;
  result.settings = &settings;
  result.batch = &batch;
  result.weights =
      weights[static_cast<size_t>(model.shape().blocks[static_cast<size_t>(block)].unit)].data();
  return result;
}

template <class T>
std::vector<double> Runner<T>::forward(int64_t block, const std::vector<double>& x, Guarded* saved,
                                       bool stepwise) {
  const BlockSizes size = sizes(block);
  Guarded output(size.output_bytes), workspace(size.forward_workspace_bytes);
  const std::vector<T> in = convert<T>(x);
  Call forward_call = call(block);
  forward_call.input = in.data();
  forward_call.output = output.data();
  forward_call.workspace = workspace.data();
  forward_call.saved = saved ? saved->data() : nullptr;
  const int segments =
      static_cast<int>(model.shape().blocks[static_cast<size_t>(block)].segments.size());
  if (stepwise) {
    for (int s = 0; s < segments; ++s) model.block(block).forward(forward_call, s, s + 1);
  } else {
    model.block(block).forward(forward_call, 0, segments);
  }
  EXPECT_TRUE(output.intact() && workspace.intact() && (!saved || saved->intact()))
      << "block " << block;
  return widen(output.as<T>(), size.output_bytes / static_cast<int64_t>(sizeof(T)));
}

template <class T>
typename Runner<T>::Backward Runner<T>::backward(int64_t block, const std::vector<double>& x,
                                                 Guarded& saved, const std::vector<double>& dy,
                                                 BackwardOptions options) {
  const BlockSizes size = sizes(block);
  const int64_t unit = model.shape().blocks[static_cast<size_t>(block)].unit;
  const int64_t elements = model.shape().units[static_cast<size_t>(unit)].elements;
  Guarded gradient(elements * static_cast<int64_t>(sizeof(Wide<T>))),
      workspace(size.backward_workspace_bytes);
  Guarded bundle(size.bundle_bytes), input_gradient(size.input_bytes),
      output_gradient(size.output_bytes);
  std::fill_n(gradient.as<Wide<T>>(), elements, static_cast<Wide<T>>(options.start));
  std::ranges::copy(convert<T>(dy), output_gradient.as<T>());
  const std::vector<T> in = convert<T>(x);
  Call backward_call = call(block);
  backward_call.input = in.data();
  backward_call.saved = saved.data();
  backward_call.output_gradient = output_gradient.data();
  Guarded& result = options.in_place ? output_gradient : input_gradient;
  backward_call.input_gradient = result.data();
  backward_call.gradient = gradient.data();
  backward_call.accumulate = options.accumulate;
  backward_call.workspace = workspace.data();
  backward_call.bundle = bundle.data();
  const Block& target = model.block(block);
  const int segments =
      static_cast<int>(model.shape().blocks[static_cast<size_t>(block)].segments.size());
  if (!options.split) {
    target.backward(backward_call);
  } else {
    const int stride = options.stepwise ? 1 : segments;
    for (int s = segments; s > 0; s -= stride) target.backward_input(backward_call, s - stride, s);
    Call weight_call = call(block);  // the bundle is all that backward_weight may read
    weight_call.bundle = bundle.data();
    weight_call.gradient = gradient.data();
    weight_call.accumulate = options.accumulate;
    for (int s = segments; s > 0; s -= stride) target.backward_weight(weight_call, s - stride, s);
  }
  EXPECT_TRUE(gradient.intact() && workspace.intact() && bundle.intact() &&
              input_gradient.intact() && output_gradient.intact() && saved.intact())
      << "block " << block;
  return {widen(result.as<T>(), size.input_bytes / static_cast<int64_t>(sizeof(T))),
          widen(gradient.as<Wide<T>>(), elements)};
}

template <class T>
typename Runner<T>::Head Runner<T>::head(const std::vector<double>& x, bool with_gradient,
                                         bool accumulate, double start) {
  const auto block = static_cast<int64_t>(model.shape().blocks.size()) - 1;
  const BlockSizes size = sizes(block);
  const int64_t unit = model.shape().blocks.back().unit;
  const int64_t elements = model.shape().units[static_cast<size_t>(unit)].elements;
  Guarded workspace(with_gradient ? size.backward_workspace_bytes : size.forward_workspace_bytes);
  Guarded gradient(elements * static_cast<int64_t>(sizeof(Wide<T>))),
      input_gradient(size.input_bytes);
  std::fill_n(gradient.as<Wide<T>>(), elements, static_cast<Wide<T>>(start));
  const std::vector<T> in = convert<T>(x);
  Head result;
  Call head_call = call(block);
  head_call.input = in.data();
  head_call.workspace = workspace.data();
  head_call.loss_sum = &result.loss;
  head_call.loss_count = &result.count;
  head_call.accumulate = accumulate;
  if (with_gradient) {
    head_call.gradient = gradient.data();
    head_call.input_gradient = input_gradient.data();
  }
  model.block(block).forward_backward(head_call);
  EXPECT_TRUE(workspace.intact() && gradient.intact() && input_gradient.intact());
  result.backward = {
      widen(input_gradient.as<T>(), size.input_bytes / static_cast<int64_t>(sizeof(T))),
      widen(gradient.as<Wide<T>>(), elements)};
  return result;
}

template <class T>
typename Runner<T>::Step Runner<T>::step(bool accumulate, double start) {
  const auto blocks = static_cast<int64_t>(model.shape().blocks.size());
  std::vector<std::vector<double>> activations = {{}};
  std::vector<std::unique_ptr<Guarded>> saved;
  for (int64_t block = 0; block + 1 < blocks; ++block) {
    saved.push_back(std::make_unique<Guarded>(sizes(block).saved_bytes));
    activations.push_back(forward(block, activations.back(), saved.back().get()));
  }
  const Head top = head(activations.back(), true, accumulate, start);
  Step result;
  result.loss = top.loss;
  result.gradients.resize(model.shape().units.size());
  result.gradients[static_cast<size_t>(model.shape().blocks.back().unit)] =
      top.backward.unit_gradient;
  std::vector<double> gradient = top.backward.input_gradient;
  for (int64_t block = blocks - 2; block >= 0; --block) {
    const auto unit = static_cast<size_t>(model.shape().blocks[static_cast<size_t>(block)].unit);
    const auto index = static_cast<size_t>(block);
    BackwardOptions options;
    options.accumulate = accumulate;
    options.start = start;
    Backward part;
    if (result.gradients[unit].empty()) {
      part = backward(block, activations[index], *saved[index], gradient, options);
    } else {
      part = tied_embedding(result.gradients[unit], *saved[index], gradient, accumulate);
    }
    result.gradients[unit] = part.unit_gradient;
    gradient = part.input_gradient;
  }
  return result;
}

/// The embedding's backward into the gradient that the head has begun.
template <class T>
typename Runner<T>::Backward Runner<T>::tied_embedding(const std::vector<double>& begun,
                                                       Guarded& saved,
                                                       const std::vector<double>& dy,
                                                       bool accumulate) {
  std::vector<Wide<T>> gradient = convert<Wide<T>>(begun);
  const std::vector<T> output_gradient = convert<T>(dy);
  Guarded workspace(sizes(0).backward_workspace_bytes);
  Call backward_call = call(0);
  backward_call.saved = saved.data();
  backward_call.output_gradient = output_gradient.data();
  backward_call.gradient = gradient.data();
  backward_call.accumulate = accumulate;
  backward_call.workspace = workspace.data();
  model.block(0).backward(backward_call);
  EXPECT_TRUE(workspace.intact());
  return {{}, widen(gradient.data(), static_cast<int64_t>(gradient.size()))};
}

template class Runner<float>;
template class Runner<double>;
template class Runner<Bfloat16>;

}  // namespace strait::model
