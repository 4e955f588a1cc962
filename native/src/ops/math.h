// Elementary functions in double, made only of fma and exact operations: the same bits on every ISA and libc.
#ifndef LW_OPS_MATH_H
#define LW_OPS_MATH_H

// Relative error below 1e-15 over the ranges that the library uses.
double lw_log(double x);                                 // x > 0, normal
double lw_exp(double x);                                 // |x| < 700
double lw_softplus(double x);                            // ln(1 + exp(x)) of any x
void lw_sincos(double x, double* sine, double* cosine);  // |x| < 2^31

#endif
