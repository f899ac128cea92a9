"""Audit of claims: anybody's figures, formulas and explanations, each with a verdict, its reason and the working.

claims   what a claims file holds; figures, formula: units and arithmetic as printed
facts    public facts that no device or model file holds
rules/   kinds of checks, each a description in the file and the rule that judges it
base     the desk where a check looks things up; traffic: a set-up under its load
run      every claim judged under each way to read it
verdict  the words that come out
"""
