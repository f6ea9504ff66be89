// Runs what the CUDA kernels of kl_div_with_logits compute of a row, class by class, on the host, against long double.
// Prints the worst errors: of values in last places of the larger of the value and 2^-38, of gradients in those of the
// largest of the gradient, of 2^-22 of the probability, and of the probability times the row's mean |d|.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "losses/rows/kl_div_with_logits.h"

using namespace cudaloss;
using Long = long double;
using Logits = std::vector<float>;

// What exponentials of 2^-22 are off by (PTX: ex2.approx).
float coarse_error(std::mt19937& random) { return 1.0f + (static_cast<float>(random() % 2001) - 1000.0f) * 0x1p-32f; }

struct Row {
  double loss;  // over T^2
  std::vector<double> gradients;
};

// As row_of_distributions in csrc/cuda does it.
template <class T>
Row run(const Logits& x, const Logits& t, double temperature, std::mt19937& random) {
  constexpr bool kFast = SeenClasses<T>::kFast;
  const losses::kl_div_with_logits loss(Numbers{temperature, 0.0, 0});
  const Constant<float> inverse = inverse_of(temperature, 0.0f);
  float max_x = -INFINITY, max_t = -INFINITY, sum_x = 0.0f, sum_t = 0.0f;
  for (float v : x) max_x = std::max(max_x, v);
  for (float v : t) max_t = std::max(max_t, v);
  const float as_float = static_cast<float>(temperature);
  SeenClasses<T> seen = {inverse, static_cast<float>(ExpParts<double>::log2_e / temperature),
                         RowScale<float>::of(max_x, inverse, as_float), RowScale<float>::of(max_t, inverse, as_float)};
  for (float v : x) sum_x += seen.any_exp(v - seen.input.shift, seen.input) * coarse_error(random);
  for (float v : t) sum_t += seen.any_exp(v - seen.target.shift, seen.target) * coarse_error(random);
  seen.compare(sum_x, sum_t);
  double divergence = 0.0, excess = 0.0, p = 0.0;
  std::vector<float> more, q;
  for (size_t j = 0; j < x.size(); ++j) {
    const float own = x[j] - seen.input.shift, other = t[j] - seen.target.shift;
    const WithRest<float> d = seen.d(own, other);
    const auto term = loss.template term<kFast>(seen.larger(own, other, d), d);
    divergence += term.divergence;
    excess += term.excess;
    p += term.p;
    more.push_back(term.excess);
    q.push_back(term.p + term.excess);
  }
  const auto found = loss.finish(divergence, excess, p);
  const Constant<float> by = constant_of(1.0 / p, 0.0f);
  const float less = static_cast<float>(found.of_q / p);
  Row row = {found.divergence, {}};
  for (size_t j = 0; j < x.size(); ++j) {
    row.gradients.push_back(fused(more[j], by.hi, fused(-less, q[j], more[j] * by.lo)));
  }
  return row;
}

std::vector<Long> log_softmax(const Logits& x, double temperature) {
  size_t largest = 0;
  for (size_t j = 1; j < x.size(); ++j) largest = x[j] > x[largest] ? j : largest;
  Long others = 0;
  for (size_t j = 0; j < x.size(); ++j) others += j == largest ? 0 : expl((Long{x[j]} - x[largest]) / temperature);
  std::vector<Long> logs;
  for (float v : x) logs.push_back((Long{v} - x[largest]) / temperature - log1pl(others));
  return logs;
}

Long last_place(Long x, int digits) {
  int exponent;
  frexpl(x, &exponent);
  return ldexpl(1.0L, exponent - digits);
}

struct Worst {
  double value = 0.0, gradient = 0.0;
};

template <class T>
void compare(const Logits& x, const Logits& t, double temperature, int digits, std::mt19937& random, Worst& worst) {
  const Row found = run<T>(x, t, temperature, random);
  const auto log_q = log_softmax(x, temperature), log_p = log_softmax(t, temperature);
  Long exact = 0, mean = 0;
  for (size_t j = 0; j < x.size(); ++j) {
    const Long d = log_q[j] - log_p[j], p = expl(log_p[j]);
    exact += p * (expm1l(d) - d);
    mean += p * fabsl(d);
  }
  const Long value = static_cast<float>(found.loss), least = 0x1p-38L;
  worst.value = std::fmax(worst.value, double(fabsl(value - exact) / last_place(exact + least, digits)));
  for (size_t j = 0; j < x.size(); ++j) {
    const Long d = log_q[j] - log_p[j], p = expl(log_p[j]), q = expl(log_q[j]);
    const Long gradient = d > 0 ? -q * expm1l(-d) : p * expm1l(d);
    const Long logarithm = fmaxl(1, fmaxl(fabsl(log_q[j]), fabsl(log_p[j])));
    const Long size = fmaxl(fabsl(gradient), fmaxl(p, q) * (0x1p-22L * logarithm + mean));
    if (size < 1e-31L) continue;  // an exp below the normal numbers is 0
    worst.gradient = std::fmax(worst.gradient, double(fabsl(found.gradients[j] - gradient) / last_place(size, digits)));
  }
}

float in_bfloat(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x8000u) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Worst floats, halves;
  int rows = 0;
  for (int classes : {2, 3, 10, 100, 1000}) {
    for (double temperature : {0.5, 1.0, 2.0, 3.7}) {
      for (float noise : {3.0f, 0.3f, 1e-3f, 1e-6f}) {
        for (float apart : {0.0f, 5.0f}) {
          for (float spread : {1.0f, 12.0f, 1e4f}) {
            Logits x, t, half_x, half_t;
            for (int j = 0; j < classes; ++j) {
              t.push_back(spread * normal(random));
              x.push_back(t[j] + apart + noise * normal(random));
              half_x.push_back(in_bfloat(x[j]));
              half_t.push_back(in_bfloat(t[j]));
            }
            compare<FloatFloat>(x, t, temperature, 24, random, floats);
            compare<FastFloat>(half_x, half_t, temperature, 8, random, halves);
            ++rows;
          }
        }
      }
    }
  }
  std::mt19937 same(1);
  const Logits few = {0.0f, 1.0f, 2.0f}, lacks = {0.0f, -INFINITY, 2.0f};
  const double ruled_out = run<FloatFloat>(lacks, few, 1.0, same).loss,
               half = run<FastFloat>(lacks, few, 1.0, same).loss;
  const double impossible = run<FloatFloat>(few, lacks, 1.0, same).loss,
               neither = run<FloatFloat>(lacks, lacks, 1.0, same).loss;
  printf(
      "{\"rows\": %d, \"floats\": [%.3f, %.3f], \"halves\": [%.3f, %.3f], \"ruled_out\": %d, \"impossible\": %.9g, "
      "\"neither\": %.9g}\n",
      rows, floats.value, floats.gradient, halves.value, halves.gradient, std::isinf(ruled_out) && std::isinf(half),
      impossible, neither);
}
