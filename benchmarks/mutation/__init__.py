"""Faulty kernels from correct ones: does the evaluator see the fault?"""
