// The private ops of all losses on each backend, on the LibTorch stable ABI; src/cudaloss/_ops/private.py has their
// schemas. An op that declines returns undefined tensors, which are None in Python. So are gradients that nobody asks
// for.
#include <torch/csrc/stable/library.h>

#include <list>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "torch/backends.h"
#include "torch/call.h"
#include "torch/class_block.h"
#include "torch/contrast.h"
#include "torch/overlap.h"
#include "torch/vocabulary.h"

namespace cudaloss::tensors {

// The common part of the ops' schemas, in its order.
#define CUDALOSS_PARAMETERS                                                                              \
  Tensor input, Tensor target, int64_t mode, double parameter, double scale, Maybe weight, Maybe mask,   \
      Maybe normalizer, std::optional<double> divisor, Maybe third, double second, int64_t ignore_index, \
      double softcap
#define CUDALOSS_CALL                                                                                                  \
  Call {                                                                                                               \
    input, target, Mode(mode), {parameter, second, Mode(mode).flags}, scale, weight, mask, normalizer, divisor, third, \
        ignore_index, softcap                                                                                          \
  }

constexpr char kReducedOnly[] = "only a reduced loss has its gradients in the same pass";

inline Result result(const Maybe& tensor) { return tensor ? result(*tensor) : Result{nullptr, DType::Float32}; }
inline Tensor or_undefined(const Maybe& tensor) { return tensor ? *tensor : Tensor(); }
inline Maybe gradient_as(const Tensor& operand, bool wanted) {
  return wanted ? Maybe(empty_as(operand, operand.scalar_type())) : Maybe();
}

// The gradients that a pass makes.
struct Gradients {
  Maybe input, target, third;

  bool any() const { return input || target || third; }
  void add_to(Layout& layout) const {
    if (input) layout.add(kResult, *input);
    if (target) layout.add(kSecondResult, *target);
    if (third) layout.add(kThirdResult, *third);
  }
  void add_to(Pass& pass) const {
    pass.grad_input = result(input);
    pass.grad_target = result(target);
    pass.grad_third = result(third);
  }
};

// Whether the pass that makes the other gradients also makes the third operand's: if that is a vector.
inline bool makes_third(const Call& call) {
  return call.mode.for_third && call.of_vectors && call.third && same_sizes(call.input, *call.third);
}

// New memory for the gradients that the call wants, but not for those of operands that are broadcast.
inline Gradients gradients_for(const Call& call, const Layout& layout) {
  return {gradient_as(call.input, call.mode.for_input && layout.is_full(call.input)),
          gradient_as(call.target, call.mode.for_target && layout.is_full(call.target)),
          makes_third(call) ? gradient_as(*call.third, true) : Maybe()};
}

// The results of a forward; without a value if it declines. Without a record its gradients are for a grad_output of 1.
struct Found {
  Maybe value;
  Gradients gradients;
  Maybe denominators, record;
};

inline double* record_in(const Maybe& record) {
  return record ? static_cast<double*>(record->mutable_data_ptr()) : nullptr;
}

// Single losses have the layout of the input, or of the target if only it has the result's shape.
inline Tensor empty_losses(const Call& call, const Layout& layout) {
  for (const Tensor* like : {&call.input, &call.target}) {
    if (!layout.is_of_rows() && layout.is_full(*like)) return empty_as(*like, call.mode.dtype);
  }
  return empty_contiguous(layout.sizes(), call.mode.dtype, call.input);
}

// Whether the pass itself counts the valid rows.
template <class Engine>
bool counts_inside(const Call& call, const Layout& layout) {
  if (!Engine::kCountsFewRows) return false;
  int64_t rows = 1;
  for (int64_t size : layout.sizes()) rows *= size;
  return call.counts_few(rows);
}

// The loss, the gradients asked for (from the same pass, for a grad_output of 1 or for the record's), and the
// denominators that were counted for it. `over`: the memory of the gradients; otherwise new memory.
template <class Engine>
Found forward_of(const Call& call, bool with_grad, bool keeps_denominators = true, const Gradients& over = {}) {
  Layout layout = layout_of(call);
  if (declines(call, fault_of(call, layout))) return {};
  // Unequal shapes: the Python layer checks the call and warns.
  if (call.mode.may_decline && !call.of_rows && !same_sizes(call.input, call.target)) return {};
  require(!with_grad || ((!call.mode.for_input || layout.is_full(call.input)) &&
                         (!call.mode.for_target || layout.is_full(call.target))),
          "an operand that is broadcast has its gradient in a pass of its own");
  Found found = {call.elementwise()
                     ? empty_losses(call, layout)
                     : empty_contiguous(layout.leading_sizes(call.mode.batch_dims), call.mode.dtype, call.input),
                 !with_grad   ? Gradients{}
                 : over.any() ? over
                              : gradients_for(call, layout),
                 {}};
  if (call.elementwise()) layout.add(kResult, *found.value);
  found.gradients.add_to(layout);
  // If nobody asks for the denominator and the CPU reads it, no tensor is made: saves 0.6 us.
  Divisor own;
  const bool is_own = !keeps_denominators && call.counts() && call.mode.batch_dims == 0 && call.input.is_cpu();
  if (is_own) {
    count_into<Engine>(call, layout, &own);
  } else if (keeps_denominators || !counts_inside<Engine>(call, layout)) {
    found.denominators = counted<Engine>(call, layout);
  }
  Pass pass = pass_of(call, layout, is_own ? &own : divisors_in(found.denominators),
                      found.denominators && found.denominators->numel() > 2);
  set_dims(pass, call, layout);
  (call.elementwise() ? pass.losses : pass.reduction) = result(found.value);
  found.gradients.add_to(pass);
  if (Engine::kExpects && call.mode.expects && found.gradients.any()) {
    const int64_t sizes[] = {2}, strides[] = {1};
    found.record = empty({sizes, 1}, {strides, 1}, ScalarType::Double, call.input);
    pass.prediction = Engine::prediction_of(call.mode.loss, call.input);
    pass.prediction.record = record_in(found.record);
  }
  Engine::pass(pass, call.input);
  return found;
}

template <class Engine>
std::tuple<Tensor, Tensor> forward(CUDALOSS_PARAMETERS) {
  const Found found = forward_of<Engine>(CUDALOSS_CALL, false);
  return {or_undefined(found.value), or_undefined(found.denominators)};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> all_of(const Found& found) {
  const Gradients& gradients = found.gradients;
  return {or_undefined(found.value),     or_undefined(gradients.input),    or_undefined(gradients.target),
          or_undefined(gradients.third), or_undefined(found.denominators), or_undefined(found.record)};
}
// Without options.
inline std::tuple<Tensor, Tensor, Tensor, Tensor> plain_of(const Found& found) {
  return {or_undefined(found.value), or_undefined(found.gradients.input), or_undefined(found.gradients.target),
          or_undefined(found.record)};
}

template <class Engine>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> forward_with_grads(CUDALOSS_PARAMETERS) {
  const Call call = CUDALOSS_CALL;
  require_below_autograd(call);
  require(!call.elementwise(), kReducedOnly);
  return all_of(forward_of<Engine>(call, true));
}

// The loss; the gradient of one operand overwrites this operand: the input's, or of two distributions also the
// target's. A row's kernels have read it before they write it. At the end those of distributions read an element again,
// and the thread that reads it is the only one, and writes it.
template <class Engine>
Tensor forward_over(CUDALOSS_PARAMETERS) {
  const Call call = CUDALOSS_CALL;
  require_below_autograd(call);
  const bool of_two = call.reads == Reads::Distributions, over_target = of_two && call.mode.for_target;
  require(!call.elementwise() && (call.of_classes || of_two) && call.mode.for_input != call.mode.for_target &&
              (call.mode.for_input || over_target),
          "only a reduced loss of classes, or of distributions, has the gradient of one operand over it");
  // A capped row's kernel reads the target's logit again, after its gradient has been written.
  require(softcap == 0.0, "a loss with a softcap has its gradient in memory of its own");
  const Gradients over = over_target ? Gradients{{}, target, {}} : Gradients{input, {}, {}};
  return or_undefined(forward_of<Engine>(call, true, false, over).value);
}

// The two ops for calls without options. Five arguments and one result less save 0.9 of the dispatcher's 4.4 us (smooth
// L1 of 64 elements on the CPU).
struct PlainCall {
  const Maybe none;
  const std::optional<double> divisor;
  const Call call;

  PlainCall(const Tensor& input, const Tensor& target, int64_t mode, double parameter)
      : call{input, target, Mode(mode), {parameter, 0.0, Mode(mode).flags}, 1.0, none, none, none, divisor, none} {}
};
template <class Engine>
Found plain_call(const Tensor& input, const Tensor& target, int64_t mode, double parameter, bool with_grad) {
  const PlainCall plain(input, target, mode, parameter);
  const Call& call = plain.call;
  require_below_autograd(call);
  require(!(with_grad && call.elementwise()), kReducedOnly);
  return forward_of<Engine>(call, with_grad, false);
}

template <class Engine>
Tensor loss(Tensor input, Tensor target, int64_t mode, double parameter) {
  return or_undefined(plain_call<Engine>(input, target, mode, parameter, false).value);
}

template <class Engine>
std::tuple<Tensor, Tensor, Tensor, Tensor> loss_with_grad(Tensor input, Tensor target, int64_t mode, double parameter) {
  return plain_of(plain_call<Engine>(input, target, mode, parameter, true));
}

// Only the denominators of a mean, for a part of the data: processes add them up before they divide.
template <class Engine>
Tensor denominators(CUDALOSS_PARAMETERS) {
  const Call call = CUDALOSS_CALL;
  const Layout layout = layout_of(call);
  if (declines(call, fault_of(call, layout))) return {};
  return or_undefined(counted<Engine>(call, layout));
}

// Why the kernels do not serve a backward of this call; null if they do.
inline const char* backward_fault(const Call& call, const Layout& layout, const Tensor& grad_output,
                                  const Maybe& denominators) {
  if (const char* fault = fault_of(call, layout)) return fault;
  if (!same_device(call.input, grad_output)) return "grad_output must be on the operands' device";
  const auto sizes = grad_output.sizes(), all = layout.shape();
  const size_t dims = call.elementwise() ? all.size() : static_cast<size_t>(call.mode.batch_dims);
  if (sizes.size() != dims || !std::equal(sizes.begin(), sizes.end(), all.begin())) {
    return "grad_output must be of the result's shape";
  }
  return has_denominators(call, layout, denominators) ? nullptr : "denominators must be those of the forward";
}

// A plain call does not keep its denominators, so they are counted again, except if its gradients are already right:
// the count of cross_entropy (2^24, 10) fp32 took 54 us of a step of 730 (H100).
template <class Engine>
Maybe found_again(const Call& call, const Layout& layout, const Maybe& denominators, const Held& held = {}) {
  const bool has_them = denominators || layout.fault() || !call.has_indices() || counts_inside<Engine>(call, layout);
  return has_them ? denominators : counted<Engine>(call, layout, held);
}

inline Pass backward_pass(const Call& call, Layout& layout, const Tensor& grad_output, const Maybe& denominators) {
  layout.add(kGradOutput, grad_output, true);
  Pass pass = pass_of(call, layout, divisors_in(denominators), denominators && denominators->numel() > 2);
  pass.grad_output = operand(grad_output);
  pass.loss_dtype = pass.input.dtype;
  pass.of_third = call.mode.for_third && !call.of_rows && !call.mode.for_input && !call.mode.for_target;
  return pass;
}

// Fills the gradients asked for, of operands with the result's shape.
template <class Engine>
void full_gradients(const Call& call, Layout layout, const Tensor& grad_output, const Maybe& denominators,
                    const Gradients& gradients, const Prediction* prediction = nullptr) {
  if (!gradients.any()) return;
  gradients.add_to(layout);
  Pass pass = backward_pass(call, layout, grad_output, denominators);
  set_dims(pass, call, layout);
  gradients.add_to(pass);
  if (prediction) {  // made again as the forward made them
    pass.hold_gradients = true;
    pass.prediction = *prediction;
    pass.loss_dtype = dtype_of(call.mode.dtype);
  }
  Engine::pass(pass, call.input);
}

// The gradient of a broadcast operand: a segment for each of its elements, summed over everything else. Fills those of
// the other operand from the same reading.
template <class Engine>
Tensor summed_gradient(const Call& call, Layout layout, const Tensor& grad_output, const Maybe& denominators,
                       const Tensor& operand, Summed summed, const Gradients& others = {}) {
  require(!denominators || denominators->numel() <= 2, "denominators of several segments must be part of grad_output");
  others.add_to(layout);
  Pass pass = backward_pass(call, layout, grad_output, denominators);
  const int missing = layout.rank() - static_cast<int>(operand.dim());
  const auto is_own = [&](int dim) { return dim >= missing && operand.sizes()[dim - missing] != 1; };
  pass.segments = layout.in_order(is_own);
  pass.inner = layout.by_memory([&](int dim) { return !is_own(dim); });
  const Tensor gradient = empty_contiguous(operand.sizes(), operand.scalar_type(), operand);
  pass.reduction = result(gradient);
  pass.summed = summed;
  others.add_to(pass);
  Engine::pass(pass, call.input);
  return gradient;
}

// The gradient of a third operand of elements that is a tensor.
template <class Engine>
Tensor third_gradient(const Call& call, const Layout& layout, const Tensor& grad_output, const Maybe& denominators) {
  require(call.third && !call.mode.for_input && !call.mode.for_target,
          "the gradient of a third operand is of a tensor, and comes in a pass of its own");
  if (!layout.is_full(*call.third)) {
    return summed_gradient<Engine>(call, layout, grad_output, denominators, *call.third, Summed::GradInput);
  }
  const Maybe gradient = gradient_as(*call.third, true);
  full_gradients<Engine>(call, layout, grad_output, denominators, {gradient, {}, {}});
  return *gradient;
}

// The gradients asked for, from the operands.
template <class Engine>
std::tuple<Tensor, Tensor, Tensor> gradients(Tensor grad_output, Maybe kept, CUDALOSS_PARAMETERS) {
  const Call call = CUDALOSS_CALL;
  const Layout layout = layout_of(call, &grad_output);
  if (declines(call, backward_fault(call, layout, grad_output, kept))) return {};
  const Maybe denominators = found_again<Engine>(call, layout, kept);
  if (call.mode.for_third && !call.of_rows) {
    return {Tensor(), Tensor(), third_gradient<Engine>(call, layout, grad_output, denominators)};
  }
  require(!call.mode.for_third || makes_third(call), "the third operand has no gradient");
  Gradients found = gradients_for(call, layout);
  const bool sums_input = call.mode.for_input && !found.input, sums_target = call.mode.for_target && !found.target;
  const bool in_one_pass = Engine::kSumsBeside && !call.of_rows && sums_input != sums_target;
  const Gradients others = in_one_pass ? found : Gradients{};
  if (!in_one_pass) full_gradients<Engine>(call, layout, grad_output, denominators, found);
  const auto summed = [&](const Tensor& operand, Summed gradients) {
    return summed_gradient<Engine>(call, layout, grad_output, denominators, operand, gradients, others);
  };
  if (sums_input) found.input = summed(input, Summed::GradInput);
  if (sums_target) found.target = summed(target, Summed::GradTarget);
  return {or_undefined(found.input), or_undefined(found.target), or_undefined(found.third)};
}

// Whether grad_output is known to be 1 everywhere without waiting for a GPU.
inline bool is_unit_on_cpu(const Tensor& grad_output) {
  return grad_output.is_cpu() && grad_output.numel() > 0 && is_broadcast_scalar(grad_output) &&
         number_at<double>(operand(grad_output), 0) == 1.0;
}

inline bool is_record(const Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Double && tensor.dim() == 1 && tensor.numel() == 2 &&
         tensor.is_contiguous();
}

// Turns a forward's gradients into those for `grad_output`; if they are those already, there is nothing to do. False if
// the op declines: hooks on saved tensors may have returned anything.
template <class Engine>
bool rescaled(const Call& call, const Gradients& held, const Tensor& grad_output, const Maybe& kept,
              const Maybe& record) {
  require(!call.elementwise(), kReducedOnly);
  if (!record && is_unit_on_cpu(grad_output)) return true;
  const Layout layout = layout_of(call, &grad_output, {&held.input, &held.target});
  const char* fault = backward_fault(call, layout, grad_output, kept);
  const auto fits = [&](const Maybe& gradient, const Tensor& operand, bool wanted) {
    return gradient.has_value() == wanted &&
           (!wanted || (gradient->scalar_type() == operand.scalar_type() && same_device(operand, *gradient) &&
                        layout.is_full(*gradient)));
  };
  if (!fault &&
      !(fits(held.input, call.input, call.mode.for_input) && fits(held.target, call.target, call.mode.for_target) &&
        fits(held.third, call.third ? *call.third : call.input, makes_third(call)))) {
    fault = "gradients must be of their operands' shapes and dtypes";
  }
  if (!fault && record && !(Engine::kExpects && is_record(*record) && same_device(call.input, *record))) {
    fault = "record must be the forward's";
  }
  if (declines(call, fault)) return false;
  Prediction prediction = record ? Engine::slots_of(call.mode.loss, call.input) : Prediction{};
  prediction.record = record_in(record);
  const Held known = {is_broadcast_scalar(grad_output) ? operand(grad_output) : kNoOperand, prediction};
  const Maybe denominators = found_again<Engine>(call, layout, kept, known);
  full_gradients<Engine>(call, layout, grad_output, denominators, held, &prediction);
  return true;
}

template <class Engine>
bool rescale(Maybe grad_input, Maybe grad_target, Maybe grad_third, Tensor grad_output, Maybe kept, Maybe record,
             CUDALOSS_PARAMETERS) {
  const Call call = CUDALOSS_CALL;
  require_below_autograd(call);
  return rescaled<Engine>(call, {grad_input, grad_target, grad_third}, grad_output, kept, record);
}

// ---- the ops of a compiled step: see torch/compiled.h ----

// Calls `visit` with the memory of each gradient that is not empty.
template <class Visit>
void each_memory(const Gradients& gradients, const Visit& visit) {
  for (const Maybe* gradient : {&gradients.input, &gradients.target, &gradients.third}) {
    if (*gradient && (*gradient)->numel() > 0) visit((*gradient)->const_data_ptr());
  }
}

template <class Engine>
Found compiled_forward_of(const Call& call, bool keeps_denominators) {
  require_no_grad();
  require(!call.elementwise(), kReducedOnly);
  const Found found = forward_of<Engine>(call, true, keeps_denominators);
  const bool can_be_taken = runs_backward() == false && !Engine::is_capturing(call.input);
  each_memory(found.gradients, [&](const void* memory) {
    untaken_gradients.take(memory);  // an earlier tensor's there
    if (can_be_taken) untaken_gradients.add(memory);
  });
  return found;
}

template <class Engine>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> compiled_forward_with_grads(CUDALOSS_PARAMETERS) {
  return all_of(compiled_forward_of<Engine>(CUDALOSS_CALL, true));
}

template <class Engine>
std::tuple<Tensor, Tensor> compiled_forward(CUDALOSS_PARAMETERS) {
  require_no_grad();
  return forward<Engine>(input, target, mode, parameter, scale, weight, mask, normalizer, divisor, third, second,
                         ignore_index, softcap);
}

template <class Engine>
std::tuple<Tensor, Tensor, Tensor> compiled_gradients(Tensor grad_output, Maybe kept, CUDALOSS_PARAMETERS) {
  require_no_grad();
  return gradients<Engine>(grad_output, kept, input, target, mode, parameter, scale, weight, mask, normalizer, divisor,
                           third, second, ignore_index, softcap);
}

// The same memory as another tensor with its own version counter: the caller may change it.
inline Tensor shared(const Maybe& tensor) {
  if (!tensor) return {};
  AtenTensorHandle made = nullptr;
  const auto sizes = tensor->sizes(), strides = tensor->strides();
  constexpr int64_t kBehindItsOwn = 0;
  require(aoti_torch__reinterpret_tensor(tensor->get(), tensor->dim(), sizes.data(), strides.data(), kBehindItsOwn,
                                         &made) == TORCH_SUCCESS,
          "no second tensor over a gradient's memory");
  return Tensor(made);
}

// Whether all of `held` could be taken, and are now for `grad_output`.
template <class Engine>
bool finished(const Call& call, const Gradients& held, const Tensor& grad_output, const Maybe& kept,
              const Maybe& record) {
  require_no_grad();
  if (runs_backward() != true || Engine::is_capturing(call.input)) return false;
  bool all = true;
  each_memory(held, [&](const void* memory) { all = untaken_gradients.take(memory) && all; });
  return all && rescaled<Engine>(call, held, grad_output, kept, record);
}

template <class Engine>
std::tuple<Tensor, Tensor, Tensor> compiled_finish_grads(Maybe grad_input, Maybe grad_target, Maybe grad_third,
                                                         Tensor grad_output, Maybe kept, Maybe record,
                                                         CUDALOSS_PARAMETERS) {
  if (finished<Engine>(CUDALOSS_CALL, {grad_input, grad_target, grad_third}, grad_output, kept, record)) {
    return {shared(grad_input), shared(grad_target), shared(grad_third)};
  }
  return gradients<Engine>(grad_output, kept, input, target, mode, parameter, scale, weight, mask, normalizer, divisor,
                           third, second, ignore_index, softcap);
}

// The same for calls without options.
template <class Engine>
std::tuple<Tensor, Tensor, Tensor, Tensor> compiled_loss_with_grad(Tensor input, Tensor target, int64_t mode,
                                                                   double parameter) {
  return plain_of(compiled_forward_of<Engine>(PlainCall(input, target, mode, parameter).call, false));
}

template <class Engine>
std::tuple<Tensor, Tensor> compiled_finish_grad(Maybe grad_input, Maybe grad_target, Tensor grad_output, Maybe record,
                                                Tensor input, Tensor target, int64_t mode, double parameter) {
  const Maybe none;
  if (finished<Engine>(PlainCall(input, target, mode, parameter).call, {grad_input, grad_target, none}, grad_output,
                       none, record)) {
    return {shared(grad_input), shared(grad_target)};
  }
  auto [of_input, of_target, of_third] = gradients<Engine>(grad_output, none, input, target, mode, parameter, 1.0, none,
                                                           none, none, {}, none, 0.0, -100, 0.0);
  return {of_input, of_target};
}

#undef CUDALOSS_PARAMETERS
#undef CUDALOSS_CALL

template <class Engine>
void register_ops(torch::stable::detail::StableLibrary& library) {
  library.impl("_pointwise_loss", TORCH_BOX(&loss<Engine>));
  library.impl("_pointwise_loss_with_grad", TORCH_BOX(&loss_with_grad<Engine>));
  library.impl("_pointwise_forward", TORCH_BOX(&forward<Engine>));
  library.impl("_pointwise_forward_with_grads", TORCH_BOX(&forward_with_grads<Engine>));
  library.impl("_pointwise_forward_over_", TORCH_BOX(&forward_over<Engine>));
  library.impl("_pointwise_denominators", TORCH_BOX(&denominators<Engine>));
  library.impl("_pointwise_gradients", TORCH_BOX(&gradients<Engine>));
  library.impl("_pointwise_rescale_", TORCH_BOX(&rescale<Engine>));
  library.impl("_pointwise_compiled_forward", TORCH_BOX(&compiled_forward<Engine>));
  library.impl("_pointwise_compiled_forward_with_grads", TORCH_BOX(&compiled_forward_with_grads<Engine>));
  library.impl("_pointwise_compiled_loss_with_grad", TORCH_BOX(&compiled_loss_with_grad<Engine>));
  library.impl("_pointwise_compiled_finish_grad", TORCH_BOX(&compiled_finish_grad<Engine>));
  library.impl("_pointwise_compiled_gradients", TORCH_BOX(&compiled_gradients<Engine>));
  library.impl("_pointwise_compiled_finish_grads", TORCH_BOX(&compiled_finish_grads<Engine>));
  library.impl("_pointwise_part", TORCH_BOX(&vocabulary_part<Engine>));
  library.impl("_pointwise_part_backward", TORCH_BOX(&vocabulary_part_backward<Engine>));
  library.impl("_class_sums_", TORCH_BOX(&class_sums<Engine>));
  library.impl("_class_numbers", TORCH_BOX(&class_numbers<Engine>));
  library.impl("_class_gradients_", TORCH_BOX(&class_gradients<Engine>));
  library.impl("_token_values", TORCH_BOX(&token_values<Engine>));
  library.impl("_token_gradients", TORCH_BOX(&token_gradients<Engine>));
  library.impl("_scaled_gradient_", TORCH_BOX(&scaled_gradient<Engine>));
  library.impl("_column_logs", TORCH_BOX(&column_logs<Engine>));
  library.impl("_pair_gradients_", TORCH_BOX(&pair_gradients<Engine>));
  library.impl("_partial_dots", TORCH_BOX(&partial_dots<Engine>));
  library.impl("_pair_logistic_", TORCH_BOX(&pair_logistic<Engine>));
  library.impl("_overlap_sums", TORCH_BOX(&overlap_sums<Engine>));
  library.impl("_overlap_loss", TORCH_BOX(&overlap_loss<Engine>));
  library.impl("_overlap_gradient_", TORCH_BOX(&overlap_gradient<Engine>));
}

}  // namespace cudaloss::tensors

namespace cudaloss {

// Links to one file can make a binary part of several packages, each of which has ops of its own.
void register_ops(const std::string& package) {
  using torch::stable::detail::StableLibrary;
  static std::set<std::string> packages;
  static std::list<StableLibrary> libraries;  // deregisters its ops when it is destroyed
  if (!packages.insert(package).second) return;
  const auto library = [&](const char* key) -> StableLibrary& {
    return libraries.emplace_back(StableLibrary::Kind::IMPL, package.c_str(), key, __FILE__, __LINE__);
  };
  tensors::register_ops<tensors::Cpu>(library("CPU"));
#if defined(CUDALOSS_WITH_CUDA)
  tensors::register_ops<tensors::Cuda>(library("CUDA"));
#endif
}

}  // namespace cudaloss
